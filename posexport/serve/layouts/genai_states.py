"""States between tokens in onnxruntime-genai (0.18): the models that it runs, names and settings.

It has two ways. For any decoder: a window of a convolution and a state of a recurrence for each number that an input's
name has, all windows of one size and all states of one size (src/models/recurrent_state.cpp). For LFM2: windows alone,
and a dynamic KV cache, both by the numbers of their layers (src/models/lfm2.cpp and src/models/kv_cache).
"""

from collections.abc import Mapping
from typing import Any

from posexport.base.spec import CAPACITY, CARRIED, MODEL, carried
from posexport.errors import PosexportError
from posexport.serve.layouts.renamed import renamed
from posexport.serve.layouts.shared import CONFIG, in_one_part, keeps_states, read_json
from posexport.sources.source import Source

_KINDS = ("conv", "recurrent")
_CONV, _ATTENTION = "conv", "full_attention"


def check(source: Source) -> None:
    """Raise PosexportError for states that are not passed on."""
    if not keeps_states(source) or _in_pairs(source):
        return
    sizes = _sizes(source)
    if sizes["recurrent"] or len(set(sizes["conv"])) != 1:
        raise PosexportError(
            f"{source.name} keeps {len(sizes['conv'])} windows of convolutions and {len(sizes['recurrent'])} states of "
            "recurrences, and onnxruntime-genai 0.18 passes on as many of either, each kind of one size, or windows "
            "alone: leave --layout genai out"
        )
    if any(CAPACITY in spec.axes for spec in source.inputs):
        raise PosexportError(
            f"--layout genai needs --cache dynamic for {source.name}: onnxruntime-genai keeps windows of convolutions "
            "with a dynamic KV cache only"
        )


def arranged(source: Source) -> Source:
    """``source`` with the client's names."""
    if not keeps_states(source) or _in_pairs(source):
        return source
    numbers = {
        "past_key_values": [number for number, kind in enumerate(_layers(source)) if kind == _ATTENTION],
        "past_conv": [number for number, kind in enumerate(_layers(source)) if kind == _CONV],
    }
    names: dict[str, str] = {}
    outputs = carried(source.inputs, source.outputs)
    for spec, output in zip([spec for spec in source.inputs if spec.role in CARRIED], outputs, strict=True):
        memory, number, *rest = spec.name.split(".")
        layer = str(numbers[memory][int(number)])
        names[spec.name] = ".".join([memory, layer, *rest])
        names[output.name] = ".".join([output.name.partition(".")[0], layer, *rest])
    return renamed(in_one_part(source, MODEL), names)


def settings(source: Source) -> dict[str, Any]:
    """Settings of the decoder in ``genai_config.json``; ``inputs`` and ``outputs`` add to those of the KV cache."""
    if not keeps_states(source):
        return {}
    kinds = _KINDS if _in_pairs(source) else _KINDS[:1]
    names = {
        "inputs": {f"past_{kind}_names": f"past_{kind}.%d" for kind in kinds},
        "outputs": {f"present_{kind}_names": f"present_{kind}.%d" for kind in kinds},
    }
    if len(kinds) > 1:
        return names
    layers = _layers(source)
    window = _sizes(source)["conv"][0][-1]
    return {**names, "layer_types": layers, "num_hidden_layers": len(layers), "conv_cache_size": window}


def model_type(source: Source, otherwise: str) -> str:
    """``lfm2``, by which windows alone are kept, or the type ``otherwise``."""
    return "lfm2" if keeps_states(source) and not _in_pairs(source) else otherwise


def _sizes(source: Source) -> Mapping[str, list[tuple[Any, ...]]]:
    """The axes of the states by kind."""
    states = [spec for spec in source.inputs if spec.role == "state"]
    return {kind: [tuple(spec.axes) for spec in states if spec.name.startswith(f"past_{kind}.")] for kind in _KINDS}


def _in_pairs(source: Source) -> bool:
    """Whether there are as many windows as states of recurrences, each kind of one size."""
    conv, recurrent = _sizes(source).values()
    return len(conv) == len(recurrent) and len(set(conv)) == len(set(recurrent)) == 1


def _layers(source: Source) -> list[str]:
    """The kinds of the layers, as LFM2's configuration has them; sliding attention keeps what other attention does."""
    config = read_json(source.files.get(CONFIG))
    return [_CONV if kind == _CONV else _ATTENTION for kind in config.get("layer_types", [])]
