"""Provider options that users may set: names, values, and the options of ONNX Runtime that they become.

The same in Python (``posexport.load(provider_options={"tf32": True})``) and on the command line
(``--provider-option tf32=on``).
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posexport.errors import PosexportError

#: ONNX Runtime's option that captures calls as CUDA graphs
CAPTURES = "enable_cuda_graph"
_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
_TRUTHS = {"on": True, "true": True, "1": True, "off": False, "false": False, "0": False}


@dataclass(frozen=True)
class ProviderOption:
    """One option of a provider.

    Attributes:
        values: the accepted values, for messages and help.
        help: the effect.
        to_ort: converts a value to options of ONNX Runtime; ValueError for an invalid value.
    """

    values: str
    help: str
    to_ort: Callable[[Any], Mapping[str, str]]


def bytes_of(value: Any) -> int:
    """Bytes from a number or from a text with a unit (``4GB``)."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([A-Za-z]*)", str(value).strip())
    if isinstance(value, bool) or match is None or match[2].upper() not in _UNITS:
        raise ValueError
    size = int(float(match[1]) * _UNITS[match[2].upper()])
    if size < 1:
        raise ValueError
    return size


def _truth(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if str(value).lower() not in _TRUTHS:
        raise ValueError
    return _TRUTHS[str(value).lower()]


def _stream(value: Any) -> int:
    number = int(str(value), 0)
    if isinstance(value, bool) or number < 0:
        raise ValueError
    return number


_GROWTH = {"double": "kNextPowerOfTwo", "exact": "kSameAsRequested"}


def _growth(value: Any) -> str:
    if value not in _GROWTH:
        raise ValueError
    return _GROWTH[value]


#: of CUDA
CUDA_OPTIONS: Mapping[str, ProviderOption] = {
    "memory_limit": ProviderOption(
        "bytes, or a size such as 4GB",
        "The most that the session's arena takes of the card's memory; a call that needs more is an error.",
        lambda value: {"gpu_mem_limit": str(bytes_of(value))},
    ),
    "arena_growth": ProviderOption(
        "double or exact",
        "By how much the arena grows: to the next power of two (the default), or by what is asked for.",
        lambda value: {"arena_extend_strategy": _growth(value)},
    ),
    "tf32": ProviderOption(
        "on or off",
        "Products of float32 keep 10 bits of each factor; faster, and outside what was proven. The default is off.",
        lambda value: {"use_tf32": str(int(_truth(value)))},
    ),
    "stream": ProviderOption(
        "a cudaStream_t as a number",
        "Compute on this CUDA stream, such as torch.cuda.Stream().cuda_stream; it must outlive the session.",
        lambda value: {"user_compute_stream": str(_stream(value))},
    ),
    "graph": ProviderOption(
        "on or off",
        "Capture calls as CUDA graphs, one for each shape, and replay them; of decoders, steps (docs/cuda.md).",
        lambda value: {CAPTURES: str(int(_truth(value)))},
    ),
}


#: the option that names the precision in which a provider computes float32 graphs
COMPUTES = "precision"
_HINTS = {"fp32": "f32", "bf16": "bf16"}


def _hint(value: Any) -> dict[str, str]:
    if value not in _HINTS:
        raise ValueError
    return {"load_config": json.dumps({"CPU": {"INFERENCE_PRECISION_HINT": _HINTS[value]}})}


#: of OpenVINO
OPENVINO_OPTIONS: Mapping[str, ProviderOption] = {
    COMPUTES: ProviderOption(
        "fp32 or bf16",
        "The precision of matrix products and of what lies between them. The default is fp32; bf16 is fast on "
        "processors with AMX or AVX-512 BF16, and is proven against PyTorch's bfloat16.",
        _hint,
    ),
}


def ort_options(label: str, known: Mapping[str, ProviderOption], chosen: Mapping[str, Any] | None) -> dict[str, str]:
    """ONNX Runtime's provider options for the options that a user chose; ``label``: the provider's name in messages.

    Raises:
        PosexportError: an unknown option or an invalid value.
    """
    options: dict[str, str] = {}
    for name, value in (chosen or {}).items():
        if name not in known:
            has = f"it has {', '.join(known)}" if known else "it has none; name another provider, or leave it out"
            raise PosexportError(f"{label} has no option {name!r:.60}; {has}")
        try:
            options |= known[name].to_ort(value)
        except (ValueError, TypeError) as err:
            raise PosexportError(f"{name} of {label} takes {known[name].values}, got {value!r:.60}") from err
    return options


def as_mapping(pairs: Sequence[str]) -> dict[str, str]:
    """KEY=VALUE pairs of the command line; PosexportError for one without an equals sign."""
    if wrong := [pair for pair in pairs if "=" not in pair]:
        raise PosexportError(f"--provider-option takes KEY=VALUE, got {wrong[0]!r:.60}; for example tf32=on")
    return dict(pair.split("=", 1) for pair in pairs)
