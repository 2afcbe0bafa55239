"""How a model is brought to its precision: what ``posexport convert`` may be told about it. Imports no torch."""

from collections.abc import Sequence
from typing import Any, Literal, get_args

import msgspec

from posexport.errors import PosexportError
from posexport.suggest import check_choice
from posexport.targets.precisions import FP32, PRECISIONS, Precision, PrecisionName, precision_named

IOName = Literal["float32", "half"]
QuantizerName = Literal["rtn", "hqq", "gptq"]
BLOCK_SIZES = (32, 128)
_BITS_OF_INT8, _BITS_OF_INT4 = 8, 4
_BLOCKED = "--precision int4, or --precision int8 --weight-only"
#: option -> what it needs
_NEEDS = {
    "io": "a precision of 16 bits, such as --precision fp16",
    "keep_float": "--precision int8 or int4",
    "weight_only": "--precision int8",
    "block_size": _BLOCKED,
    "quantizer": _BLOCKED,
}


class PrecisionOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options about precision, as a recipe records them.

    Attributes:
        io: dtype of real-valued inputs and outputs; ``half``: the model's own. A KV cache always has the model's.
        keep_float: glob patterns of weights that are not quantised, by their names in the graph.
        weight_only: int8 weights, and activations in floating point.
        block_size: consecutive weights of a channel that share a scale, where only weights are quantised.
        quantizer: how weights of few bits are rounded.
        calibration: sha256 of the texts that static scales of activations come from, or GPTQ's errors; None: every row
            has its own scale.
    """

    name: PrecisionName = FP32.name
    io: IOName = "float32"
    keep_float: list[str] = []
    weight_only: bool = False
    block_size: int = BLOCK_SIZES[0]
    quantizer: QuantizerName = "rtn"
    calibration: str | None = None

    @property
    def precision(self) -> Precision:
        return PRECISIONS[self.name]

    @property
    def blocked(self) -> bool:
        """Only weights are quantised, in blocks."""
        bits = self.precision.weight_bits
        return bits == _BITS_OF_INT4 or (bits == _BITS_OF_INT8 and self.weight_only)

    @property
    def by_rows(self) -> bool:
        """Linear projections multiply integers: int8 weights by uint8 activations."""
        return self.precision.weight_bits == 8 and not self.blocked

    @property
    def reads_texts(self) -> bool:
        """Texts change what is stored: static scales of activations, or GPTQ."""
        return self.by_rows or self.quantizer == "gptq"

    @property
    def static(self) -> bool:
        """Activations have static scales."""
        return self.by_rows and self.calibration is not None

    def check(self) -> None:
        """PosexportError where options contradict each other."""
        precision_named(self.name)
        check_choice("io", self.io, get_args(IOName))
        check_choice("quantizer", self.quantizer, get_args(QuantizerName))
        if self.block_size not in BLOCK_SIZES:
            sizes = " or ".join(map(str, BLOCK_SIZES))
            raise PosexportError(f"--block-size must be {sizes}, got {self.block_size}")
        for name in self.unfit():
            raise PosexportError(f"--{name.replace('_', '-')} needs {_NEEDS[name]}; got --precision {self.name}")
        if self.quantizer == "gptq" and self.precision.weight_bits != _BITS_OF_INT4:
            raise PosexportError(
                f"--quantizer gptq needs --precision int4 or int4-fp16; got --precision {self.name}, whose weights "
                "rounding to nearest hardly changes"
            )

    def unfit(self) -> list[str]:
        """The options that were given and do not fit the precision."""
        precision = self.precision
        fits = {
            "io": precision.half,
            "keep_float": precision.quantized,
            "weight_only": precision.weight_bits == _BITS_OF_INT8,
            "block_size": self.blocked,
            "quantizer": self.blocked,
        }
        default = PrecisionOptions()
        return [name for name, good in fits.items() if not good and getattr(self, name) != getattr(default, name)]


def options_of(names: Sequence[PrecisionName], **options: Any) -> list[PrecisionOptions]:
    """The same options for each of several precisions; one that does not fit all of them is for those that it fits.

    Raises:
        PosexportError: a name is unknown, or an option fits none of the precisions.
    """
    if not names:
        raise PosexportError(f"no precision was named; known: {', '.join(PRECISIONS)}")
    for name in names:
        precision_named(name)
    each = [PrecisionOptions(name=name, **options) for name in names]
    for option in set.intersection(*(set(one.unfit()) for one in each)):
        raise PosexportError(
            f"--{option.replace('_', '-')} needs {_NEEDS[option]}; got --precision {' --precision '.join(names)}"
        )
    default = PrecisionOptions()
    fitting = [
        msgspec.structs.replace(one, **{option: getattr(default, option) for option in one.unfit()}) for one in each
    ]
    for one in fitting:
        one.check()
    return fitting
