"""The precisions that a bundle may have: what its weights and its activations are stored in. Imports no torch."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from posexport.errors import PosexportError
from posexport.targets.dtypes import BY_PRECISION, FLOAT32, DType


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
