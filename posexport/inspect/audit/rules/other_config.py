"""PX502: layers, heads, channels or labels of config.json that are not the graph's."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from posexport.inspect.audit.analyses.described import whole
from posexport.inspect.audit.rule import Place, Rule
from posexport.inspect.audit.subject import Subject

_KEYS = re.compile(r"^past(_key_values)?[._](\d+)[._](decoder[._])?key$|^past_key[._](\d+)$")
#: models whose layers differ: caches of some are shared, are states, or have other heads
_OF_KINDS = ("num_kv_shared", "attn_layer", "layers_block", "block_types", "hybrid", "mamba", "ssm", "linear_")


def _check(subject: Subject) -> Iterator[Place]:
    config = subject.config
    yield from _caches(subject, config)
    for value in subject.graph.outputs:
        shape = subject.sizes.of(value)
        width = shape[-1] if shape else None
        if not isinstance(width, int):
            continue
        for name, said, number in _widths(subject, config, len(shape or ())):
            if value.name == name and number is not None and width != number:
                yield Place(f"config.json says {said} = {number}, and output {name!r} has {width} channels", [name])


def _caches(subject: Subject, config: Mapping[str, Any]) -> Iterator[Place]:
    """Numbers of layers, KV heads and channels by the inputs of the cache."""
    keys = [value for value in subject.roles.past if _KEYS.match(value.name or "")]
    kinds = config.get("layer_types")
    alike = not isinstance(kinds, list) or set(kinds) <= {"full_attention", "sliding_attention"}
    if not keys or not alike or any(key.startswith(_OF_KINDS) for key, value in config.items() if value):
        return
    layers = whole(config, "num_hidden_layers", "n_layer", "num_layers")
    if layers is not None and len(keys) != layers:
        yield Place(
            f"config.json says {layers} layers, and the graph has caches of {len(keys)}", [keys[0].name or "past"]
        )
    heads = whole(config, "num_key_value_heads")
    shape = subject.sizes.of(keys[0])
    if heads is not None and shape is not None and len(shape) == 4 and isinstance(shape[1], int) and shape[1] != heads:
        yield Place(
            f"config.json says num_key_value_heads = {heads}, and input {keys[0].name!r} has {shape[1]} heads",
            [keys[0].name or "past"],
        )


def _widths(subject: Subject, config: Mapping[str, Any], rank: int) -> Iterator[tuple[str, str, int | None]]:
    """Outputs, and the keys that say how many channels they have."""
    if not subject.roles.past:
        yield "last_hidden_state", "hidden_size", whole(config, "hidden_size", "d_model", "n_embd", "dim")
    labels = config.get("id2label")
    architectures = config.get("architectures")
    classes = isinstance(architectures, list) and str(architectures[:1]).find("Classification") > 0
    # modules.json ends in a projection to other numbers of scores
    if classes and isinstance(labels, dict) and rank in (2, 3) and not subject.files.modules:
        yield "logits", "labels (id2label)", len(labels)


RULE = Rule(
    code="PX502",
    name="other-config",
    severity="error",
    finds="config.json describes another model: its layers, heads, channels or labels are not the graph's",
    why="Clients allocate caches and name classes by config.json: calls fail, or a class has another one's name.",
    remedy="Take the config.json of this graph's model, or the graph of this repository's.",
    check=_check,
    reads="folder",
    files={"config.json": '{"num_hidden_layers": 2, "num_key_value_heads": 3}'},
    bad="""
        <ir_version: 8, opset_import: ["": 18]>
        one (float[B, T, 6] inputs_embeds, float[B, 3, P, 4] past_key_values_0_key) => (float[B, 3, P, 4] present_0_key)
        { present_0_key = Abs (past_key_values_0_key) }
    """,
    good="""
        <ir_version: 8, opset_import: ["": 18]>
        two (float[B, T, 6] inputs_embeds, float[B, 3, P, 4] past_key_values_0_key,
             float[B, 3, P, 4] past_key_values_1_key)
            => (float[B, 3, P, 4] present_0_key, float[B, 3, P, 4] present_1_key)
        {
            present_0_key = Abs (past_key_values_0_key)
            present_1_key = Abs (past_key_values_1_key)
        }
    """,
)
