"""PX505: position ids of one row for a model whose positions have three."""

from collections.abc import Iterator

from posexport.inspect.audit.analyses.frequencies import rope_options
from posexport.inspect.audit.rule import Place, Rule
from posexport.inspect.audit.subject import Subject


def _check(subject: Subject) -> Iterator[Place]:
    sections = next(
        (options["mrope_section"] for options in rope_options(subject.config) if options.get("mrope_section")), None
    )
    if sections is None or not _takes_images(subject):
        return
    for value in subject.roles.positions:
        shape = subject.sizes.of(value)
        if shape is not None and len(shape) == 2:
            yield Place(
                f"config.json has mrope_section {sections}: positions of time, height and width; input {value.name!r} "
                f"has the shape {subject.sizes.shape_text(shape)}, one position for each token",
                [value.name or "position_ids"],
            )


def _takes_images(subject: Subject) -> bool:
    """Whether images reach this graph: as pixels, features, or embeddings that another graph joins."""
    names = [(value.name or "").lower() for value in subject.graph.inputs]
    if any(word in name for name in names for word in ("pixel", "image", "visual", "inputs_embeds")):
        return True
    return any("vision" in path.name or "visual" in path.name for path in subject.files.graphs)


RULE = Rule(
    code="PX505",
    name="mrope-positions",
    severity="error",
    finds="mrope_section in config.json, and position ids without the three rows",
    why="Tokens of an image have the same position in time and others in height and width. With one row for all, text "
    "is right and locations in images are wrong.",
    remedy="Export with position_ids of shape [3, batch, sequence]; posexport convert does.",
    check=_check,
    reads="folder",
    files={"config.json": '{"text_config": {"rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}}}'},
    bad="""
        <ir_version: 8, opset_import: ["": 18]>
        flat (int64[B, T] position_ids, float[B, T, 6] inputs_embeds, float[I, 6] image_features) => (float[B, T] y)
        { y = Cast <to = 1> (position_ids) }
    """,
    good="""
        <ir_version: 8, opset_import: ["": 18]>
        three (int64[3, B, T] position_ids, float[B, T, 6] inputs_embeds, float[I, 6] image_features)
            => (float[3, B, T] y)
        { y = Cast <to = 1> (position_ids) }
    """,
)
