"""The precisions that a bundle may have, and the options of ``posexport convert`` about them. Imports no torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import msgspec

from posexport.base.options.check import check_options
from posexport.base.options.option import EXPERT, Option
from posexport.base.targets.dtypes import BY_PRECISION, FLOAT32, DType
from posexport.errors import PosexportError


@dataclass(frozen=True, kw_only=True)
class Precision:
    """One precision.

    Attributes:
        name: what ``--precision`` accepts and manifests record.
        dtype: of activations, and of weights that are not quantised; errors are measured against PyTorch's in it.
        weight_bits: of the weights of linear projections where these are quantised to integers.
        suffix: of the model's file name in the layout of transformers.js.
        client_dtype: what transformers.js calls it; empty for what it does not know.
    """

    name: str
    dtype: DType = FLOAT32
    weight_bits: int | None = None
    suffix: str = ""
    client_dtype: str

    @property
    def quantized(self) -> bool:
        """Whether agreement with the float64 reference decides; a tolerance in eps would refuse quantized models."""
        return self.weight_bits is not None

    @property
    def half(self) -> bool:
        """Whether activations have 16 bits."""
        return self.dtype != FLOAT32

    @property
    def computed(self) -> str:
        """The name of the precision of activations: ``fp16`` of ``int4-fp16``."""
        return self.dtype.precision


FP32 = Precision(name="fp32", client_dtype="fp32")
PRECISIONS: dict[str, Precision] = {
    precision.name: precision
    for precision in (
        FP32,
        Precision(name="fp16", dtype=BY_PRECISION["fp16"], suffix="_fp16", client_dtype="fp16"),
        Precision(name="bf16", dtype=BY_PRECISION["bf16"], client_dtype=""),
        Precision(name="int8", weight_bits=8, suffix="_quantized", client_dtype="q8"),
        Precision(name="int4", weight_bits=4, suffix="_q4", client_dtype="q4"),
        Precision(name="int4-fp16", dtype=BY_PRECISION["fp16"], weight_bits=4, suffix="_q4f16", client_dtype="q4f16"),
    )
}

if TYPE_CHECKING:  # mypy takes no computed Literal; msgspec validates by it
    PrecisionName = str
else:
    PrecisionName = Literal[tuple(PRECISIONS)]


def precision_named(name: str) -> Precision:
    """The precision that users call ``name``; PosexportError lists the known ones."""
    if name not in PRECISIONS:
        raise PosexportError(f"unknown precision {name!r}; known: {', '.join(PRECISIONS)}")
    return PRECISIONS[name]


IOName = Literal["float32", "half"]
QuantizerName = Literal["rtn", "hqq", "gptq", "stored"]
BLOCK_SIZES = (32, 64, 128)
#: of a projection to logits where the other weights have 4
HEAD_BITS = (8, 4)
_BITS_OF_INT8, INT4_BITS = 8, 4
#: the quantizer that keeps what a checkpoint has
STORED = "stored"
_BLOCKED = "--precision int4, or --precision int8 --weight-only"
#: option -> what it needs
_NEEDS = {
    "io": "a precision of 16 bits, such as --precision fp16",
    "keep_float": "--precision int8 or int4",
    "weight_only": "--precision int8",
    "block_size": _BLOCKED,
    "head_bits": "--precision int4 or int4-fp16",
    "quantizer": _BLOCKED,
}


class PrecisionOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A precision, and how values are converted to it.

    Attributes:
        precision: of weights and activations.
        calibrate: sha256 of the calibration texts, for static scales of activations or GPTQ; None: one scale per row.
    """

    precision: PrecisionName = FP32.name
    io: Annotated[
        IOName,
        Option(
            group=EXPERT,
            help="Real-valued inputs and outputs of an fp16 or bf16 model: float32, or half for the model's own "
            "precision.",
        ),
    ] = "float32"
    keep_float: Annotated[
        Sequence[str],
        Option(
            group=EXPERT,
            metavar="PATTERN",
            help="Do not quantize weights whose names match, e.g. '*v_proj*' (repeatable).",
        ),
    ] = []
    weight_only: Annotated[bool, Option(group=EXPERT, help="With int8: quantize weights only, in blocks.")] = False
    block_size: Annotated[
        int,
        Option(group=EXPERT, help="Weights that share a scale, where only weights are quantized: 32, 64 or 128."),
    ] = BLOCK_SIZES[0]
    head_bits: Annotated[
        int,
        Option(group=EXPERT, help="With int4: bits of the weights of projections to logits, 8 or 4."),
    ] = HEAD_BITS[0]
    quantizer: Annotated[
        QuantizerName,
        Option(
            group=EXPERT,
            help="How weights of 4 bits are rounded: to nearest, by HQQ, or by GPTQ on the texts of --calibrate. "
            "stored: as a checkpoint of 4 bits has them, the default for one.",
        ),
    ] = "rtn"
    calibrate: str | None = None

    @property
    def record(self) -> Precision:
        return PRECISIONS[self.precision]

    @property
    def dtype(self) -> DType:
        """Of activations, and of weights that are not quantised."""
        return self.record.dtype

    @property
    def computed(self) -> PrecisionName:
        """The precision of activations: ``fp16`` of ``int4-fp16``."""
        return self.record.computed

    @property
    def quantized(self) -> bool:
        return self.record.quantized

    @property
    def half(self) -> bool:
        """Whether activations have 16 bits."""
        return self.record.half

    @property
    def weight_bits(self) -> int | None:
        """Bits of quantized weights of linear projections; None if they are not quantized."""
        return self.record.weight_bits

    @property
    def blocked(self) -> bool:
        """Whether only weights are quantized, in blocks."""
        bits = self.weight_bits
        return bits == INT4_BITS or (bits == _BITS_OF_INT8 and self.weight_only)

    @property
    def by_rows(self) -> bool:
        """Whether linear projections multiply integers: int8 weights by uint8 activations."""
        return self.weight_bits == 8 and not self.blocked

    @property
    def reads_texts(self) -> bool:
        """Whether calibration texts change the file: static scales of activations, or GPTQ."""
        return self.by_rows or self.quantizer == "gptq"

    @property
    def static(self) -> bool:
        """Whether activations have static scales."""
        return self.by_rows and self.calibrate is not None

    def check(self) -> None:
        """PosexportError where options contradict each other."""
        precision_named(self.precision)
        check_options(self)
        for name, known in (("block_size", BLOCK_SIZES), ("head_bits", HEAD_BITS)):
            if getattr(self, name) not in known:
                *first, last = sorted(known)
                sizes = f"{', '.join(map(str, first))} or {last}"
                raise PosexportError(f"--{name.replace('_', '-')} must be {sizes}, got {getattr(self, name)}")
        for name in self.unfit():
            raise PosexportError(f"--{name.replace('_', '-')} needs {_NEEDS[name]}; got --precision {self.precision}")
        if self.quantizer in ("gptq", STORED) and self.weight_bits != INT4_BITS:
            raise PosexportError(
                f"--quantizer {self.quantizer} needs --precision int4 or int4-fp16; got --precision {self.precision}, "
                "whose weights rounding to nearest hardly changes"
            )

    def unfit(self) -> list[str]:
        """Names of options that are set and do not fit the precision."""
        fits = {
            "io": self.half,
            "keep_float": self.quantized,
            "weight_only": self.weight_bits == _BITS_OF_INT8,
            "block_size": self.blocked,
            "head_bits": self.weight_bits == INT4_BITS,
            "quantizer": self.blocked,
        }
        default = PrecisionOptions()
        return [name for name, good in fits.items() if not good and getattr(self, name) != getattr(default, name)]


_Options = TypeVar("_Options", bound=PrecisionOptions)


def for_each(names: Sequence[PrecisionName], options: _Options) -> list[_Options]:
    """The same options for each of several precisions; one that does not fit all of them is for those that it fits.

    Raises:
        PosexportError: a name is unknown, or an option fits none of the precisions.
    """
    if not names:
        raise PosexportError(f"no precision was named; known: {', '.join(PRECISIONS)}")
    for name in names:
        precision_named(name)
    each = [msgspec.structs.replace(options, precision=name) for name in names]
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
