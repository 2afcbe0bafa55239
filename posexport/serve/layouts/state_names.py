"""Names of states and KV caches by the number of their layer, as transformers.js (4.3) makes them.

It reads the kinds of the layers from config.json (``getCacheNames`` in src/configs.js), feeds zeros of the shapes that
the graph's inputs have, and passes every output ``present_x`` on as ``past_x`` (src/models/modeling_utils.js).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from posexport.base.spec import CARRIED, carried
from posexport.errors import PosexportError
from posexport.sources.source import Source

#: the client's names for a layer's caches and states, by the prefix of posexport's names
_ATTENTION = {"past_key_values": ("past_key_values.{}.key", "past_key_values.{}.value")}
_CONV = {"past_conv": ("past_conv.{}",)}
_SSM = {**_CONV, "past_recurrent": ("past_ssm.{}",)}
_DELTA = {**_CONV, "past_recurrent": ("past_recurrent.{}",)}
#: its three names are for a window each of queries, keys and values; here one has all, and any name is passed on
_JOINT = {**_DELTA, "past_conv": ("past_conv.{}.key",)}

#: types for which it knows alone the kinds of layers that configurations had before transformers 5
OLDER = ("granitemoehybrid", "nemotron_h")
_OLDER = {"linear_attention": "mamba", "full_attention": "attention"}

#: memories by their name, of a layer by its kind
_Kinds = Mapping[str, Mapping[str, Sequence[str]]]
_SHORT: _Kinds = {"full_attention": _ATTENTION, "conv": _CONV}
_LINEAR: _Kinds = {"full_attention": _ATTENTION, "linear_attention": _DELTA}
_MAMBA: _Kinds = {"attention": _ATTENTION, "mamba": _SSM}
_BY_TYPE: Mapping[str, _Kinds] = {
    "lfm2": _SHORT,
    "lfm2_moe": _SHORT,
    "qwen3_next": _LINEAR,
    "qwen3_5_text": _LINEAR,
    "qwen3_5_moe_text": _LINEAR,
    "olmo_hybrid": {"full_attention": _ATTENTION, "linear_attention": _JOINT},
    "granitemoehybrid": _MAMBA,
    "nemotron_h": _MAMBA,
    # every layer has both
    "falcon_h1": {"": {**_SSM, **_ATTENTION}},
}
#: types of decoders that it loads without their embeddings
_THREE_GRAPHS = ("qwen3_5_text", "qwen3_5_moe_text")
#: keys of config.json with the kinds of all layers
LISTS = ("layer_types", "layers_block_type")


def client_names(source: Source, config: Mapping[str, Any]) -> dict[str, str]:
    """The client's name of every input and output that passes a state or a KV cache on, by posexport's.

    Raises:
        PosexportError: transformers.js has no names for the states of this type, or names for other states.
    """
    kind = config.get("model_type")
    kinds = _BY_TYPE.get(str(kind))
    if kinds is None:
        known = ", ".join(sorted(_BY_TYPE.keys() - set(_THREE_GRAPHS)))
        raise PosexportError(
            f"{source.name} keeps states between tokens, which transformers.js 4.3 passes on for {known} alone, and "
            f"this is {kind!r:.60}: leave --layout transformers.js out"
        )
    if kind in _THREE_GRAPHS and not source.parts:
        raise PosexportError(
            f"transformers.js 4.3 runs a {kind} as three graphs alone, which one with its vision tower becomes: "
            "leave --layout transformers.js out"
        )
    # the kinds of the layers; without a list in config.json every layer has the same
    listed = next(
        (words for key in LISTS if (words := config.get(key))), [""] * int(config.get("num_hidden_layers", 0))
    )
    words = older(listed) if kind in OLDER else listed
    # the n-th memory of a name has posexport's number n
    theirs: dict[str, list[str]] = {}
    for number, word in enumerate(words):
        for name, patterns in kinds.get(word, {}).items():
            theirs.setdefault(name, []).extend(pattern.format(number) for pattern in patterns)
    inputs = [spec.name for spec in source.inputs if spec.role in CARRIED]
    ours: dict[str, list[str]] = {}
    for name in inputs:
        ours.setdefault(name.partition(".")[0], []).append(name)
    if {name: len(names) for name, names in ours.items()} != {name: len(names) for name, names in theirs.items()}:
        raise PosexportError(
            f"{source.name} has {len(inputs)} inputs for states, keys and values, and by its config.json "
            f"transformers.js 4.3 feeds {sum(map(len, theirs.values()))} others: leave --layout transformers.js out"
        )
    names = {name: client for key in ours for name, client in zip(ours[key], theirs[key], strict=True)}
    # it makes an input's name of the output's
    outputs = [spec.name for spec in carried(source.inputs, source.outputs)]
    return names | {
        output: names[name].replace("past_key_values", "present").replace("past_", "present_")
        for name, output in zip(inputs, outputs, strict=True)
    }


def older(words: Sequence[str]) -> list[str]:
    """Kinds of layers as configurations before transformers 5 name them."""
    return [_OLDER.get(word, word) for word in words]
