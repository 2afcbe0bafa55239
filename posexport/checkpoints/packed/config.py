"""What ``quantization_config`` of a config.json says of weights of 4 bits."""

from collections.abc import Mapping
from typing import Any

from posexport.checkpoints.config import Config
from posexport.checkpoints.packed.layouts import AWQ, GPTQ, NF4, CompressedTensors, Layout
from posexport.errors import PosexportError

KEY = "quantization_config"
#: inputs that may share a scale: ONNX Runtime's MatMulNBits takes powers of two from 16 on; -1 is all of them
_SIZES = (-1, 32, 64, 128)
_ADVICE = "give the checkpoint that they were made from, and quantize with --precision"


def layout_of(config: Config) -> Layout | None:
    """How the checkpoint stores its weights; None where it has plain ones.

    Raises:
        PosexportError: in a way that is not read.
    """
    stated = config.values.get(KEY)
    if not stated:
        return None
    method = stated.get("quant_method") if isinstance(stated, Mapping) else None
    if method is None and isinstance(stated, Mapping) and stated.get("load_in_4bit"):
        method = "bitsandbytes"  # of older files
    read = _METHODS.get(str(method))
    if read is None:
        raise PosexportError(
            f"{config.label} sets {KEY} with quant_method = {method!r}: its weights are quantised, and of such "
            f"checkpoints {', '.join(_METHODS)} are read; {_ADVICE}"
        )
    return read(config, stated)


def _gptq(config: Config, stated: Mapping[str, Any]) -> Layout:
    _check(config, "bits", stated.get("bits"), (4,))
    _check(config, "group_size", stated.get("group_size"), _SIZES)
    form = stated.get("checkpoint_format", "gptq")
    _check(config, "checkpoint_format", form, ("gptq", "gptq_v2"))
    return GPTQ(stated["group_size"], offset=int(form == "gptq"))


def _awq(config: Config, stated: Mapping[str, Any]) -> Layout:
    bits, size = (stated.get(new, stated.get(old)) for new, old in (("bits", "w_bit"), ("group_size", "q_group_size")))
    _check(config, "bits", bits, (4,))
    _check(config, "group_size", size, _SIZES)
    _check(config, "version", str(stated.get("version", "gemm")).lower(), ("gemm",))
    return AWQ(size)


def _compressed_tensors(config: Config, stated: Mapping[str, Any]) -> Layout:
    _check(config, "format", stated.get("format"), ("pack-quantized",))
    groups = stated.get("config_groups")
    schemes = list(groups.values()) if isinstance(groups, Mapping) else []
    _check(config, "the number of config_groups", len(schemes), (1,))
    weights = schemes[0].get("weights") or {}
    _check(config, "input_activations", schemes[0].get("input_activations"), (None,))
    _check(config, "type", weights.get("type", "int"), ("int",))
    _check(config, "num_bits", weights.get("num_bits"), (4,))
    _check(config, "strategy", weights.get("strategy"), ("group", "channel"))
    size: Any = weights.get("group_size") if weights["strategy"] == "group" else -1
    _check(config, "group_size", size, _SIZES)
    return CompressedTensors(size)


def _bitsandbytes(config: Config, stated: Mapping[str, Any]) -> Layout:
    _check(config, "load_in_4bit", stated.get("load_in_4bit", stated.get("_load_in_4bit")), (True,))
    _check(config, "bnb_4bit_quant_type", stated.get("bnb_4bit_quant_type", "fp4"), ("nf4",))
    _check(config, "bnb_4bit_quant_storage", stated.get("bnb_4bit_quant_storage", "uint8"), ("uint8",))
    return NF4()


_METHODS = {"gptq": _gptq, "awq": _awq, "compressed-tensors": _compressed_tensors, "bitsandbytes": _bitsandbytes}


def _check(config: Config, key: str, value: object, known: tuple[object, ...]) -> None:
    if value not in known:
        raise PosexportError(
            f"{config.label}, {KEY}: {key} is {value!r}, and of its kind {' and '.join(map(str, known))} "
            f"{'is' if len(known) == 1 else 'are'} read; {_ADVICE}"
        )
