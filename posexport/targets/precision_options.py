"""How a model is brought to its precision: what ``posexport convert`` may be told about it. Imports no torch."""

from typing import Literal, get_args

import msgspec

from posexport.errors import PosexportError
from posexport.suggest import check_choice
from posexport.targets.precisions import FP32, PRECISIONS, Precision, PrecisionName, precision_named

IOName = Literal["float32", "half"]
QuantizerName = Literal["rtn", "gptq", "hqq"]
BLOCK_SIZES = (32, 128)


class PrecisionOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options about precision, as a recipe records them.

    Attributes:
        io: dtype of real-valued inputs and outputs; ``half``: the model's own. A KV cache always has the model's.
        keep_float: glob patterns of weights that are not quantised, by their names in the graph.
        weight_only: int8 weights, and activations in floating point.
        block_size: consecutive weights of a channel that share a scale, where only weights are quantised.
        quantizer: how weights of few bits are rounded.
        calibration: sha256 of the texts that static scales of activations come from; None: every row has its own scale.
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
        return self.precision.weight_bits == 4 or (self.precision.quantized and self.weight_only)

    def check(self) -> None:
        """PosexportError where options contradict each other."""
        precision = precision_named(self.name)
        check_choice("io", self.io, get_args(IOName))
        check_choice("quantizer", self.quantizer, get_args(QuantizerName))
        if self.block_size not in BLOCK_SIZES:
            sizes = " or ".join(map(str, BLOCK_SIZES))
            raise PosexportError(f"--block-size must be {sizes}, got {self.block_size}")
        needs = {
            "--io half": (self.io == "half", precision.half, "a precision of 16 bits, such as --precision fp16"),
            "--keep-float": (bool(self.keep_float), precision.quantized, "--precision int8 or int4"),
            "--weight-only": (self.weight_only, precision.weight_bits == 8, "--precision int8"),
            "--block-size": (
                self.block_size != BLOCK_SIZES[0],
                self.blocked,
                "--precision int4, or --precision int8 --weight-only",
            ),
            "--quantizer": (
                self.quantizer != "rtn",
                self.blocked,
                "--precision int4, or --precision int8 --weight-only",
            ),
        }
        for option, (used, fits, needed) in needs.items():
            if used and not fits:
                raise PosexportError(f"{option} needs {needed}; got --precision {self.name}")
