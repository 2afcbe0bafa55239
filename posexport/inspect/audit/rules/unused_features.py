"""PX510: features of images that a vision encoder computes and no graph of the repository takes."""

from collections.abc import Iterator
from pathlib import Path

from posexport.inspect.audit.reading.folder import input_names
from posexport.inspect.audit.rule import Place, Rule
from posexport.inspect.audit.subject import Subject

_WORD = "deepstack"


def _check(subject: Subject) -> Iterator[Place]:
    names = [value.name or "" for value in subject.graph.inputs]
    if not any("pixel" in name for name in names) or subject.roles.ids:
        return  # only an encoder of images leaves its features to others
    others = [path for path in subject.files.graphs if path != subject.path]
    taken = {name for path in others for name in input_names(path)}
    if not any("embeds" in name for name in taken):
        return  # no graph that reads embeddings, to which features would be added
    outputs = [value.name or "" for value in subject.graph.outputs]
    deep = [name for name in outputs if _WORD in name]
    if any(_WORD in name for name in taken):
        return
    if deep:
        yield Place(f"{', '.join(deep)}: no graph of the repository takes them ({_list(others)})", deep)
        return
    vision = subject.files.object("config.json").get("vision_config")
    layers = vision.get("deepstack_visual_indexes") if isinstance(vision, dict) else None
    if isinstance(layers, list) and layers and len(outputs) == 1 and not _is_joined(subject, vision, len(layers)):
        yield Place(
            f"config.json has deepstack_visual_indexes {layers}: features of {len(layers)} layers go to the decoder "
            f"too; the graph returns {outputs[0]!r} alone",
            outputs,
        )


def _is_joined(subject: Subject, vision: object, layers: int) -> bool:
    """Whether the features of all layers are in one output, side by side or one after the other."""
    shape = subject.sizes.of(subject.graph.outputs[0])
    width = vision.get("out_hidden_size") if isinstance(vision, dict) else None
    return shape is None or len(shape) > 2 or shape[-1] != width or shape[0] == layers + 1


def _list(paths: list[Path]) -> str:
    return ", ".join(path.name for path in paths)


RULE = Rule(
    code="PX510",
    name="unused-features",
    severity="error",
    finds="features of inner layers of a vision encoder (deepstack) reach no decoder",
    why="The decoder adds them to its first layers. Without them answers about images are plausible and wrong: small "
    "text and places are lost.",
    remedy="Export the decoder with inputs for these features; posexport convert writes both sides.",
    check=_check,
    reads="folder",
)
