"""The tensors of a weight in blocks, as MatMulNBits and as DequantizeLinear read them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import ml_dtypes
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from posexport.base.targets.precisions import QuantizerName
from posexport.errors import PosexportError
from posexport.graph.precision.blocks.rounding import Factor, Floats, Rounded, half_quadratic, nearest, second_order
from posexport.graph.precision.blocks.stored_rows import Order, StoredRows
from posexport.graph.precision.derived import Array, Derived, Read
from posexport.graph.precision.projections import Weight

#: bits -> the types of signed and of unsigned numbers, of ONNX and of NumPy
_TYPES = {
    4: (ir.DataType.INT4, ml_dtypes.int4, ir.DataType.UINT4, ml_dtypes.uint4),
    8: (ir.DataType.INT8, np.int8, ir.DataType.UINT8, np.uint8),
}


@dataclass(frozen=True)
class Scheme:
    """How a weight is stored: ``bits`` each, ``size`` that share a scale, rounded by ``quantizer``.

    8 bits are always rounded to nearest: a quantizer gains nothing that anybody sees.

    Attributes:
        factor: for GPTQ, from the inputs of the weight's products (`second_order`); a weight without one is rounded
            to nearest.
        rows: the numbers that a checkpoint has, which are kept.
    """

    bits: int
    size: int
    quantizer: QuantizerName = "rtn"
    factor: Factor | None = field(default=None, compare=False, repr=False)
    rows: StoredRows | None = field(default=None, compare=False, repr=False)

    @property
    def symmetric(self) -> bool:
        """0 is in the middle of every block."""
        if self.rows is not None:
            return self.rows.symmetric
        return self.bits == 8 or self.quantizer != "hqq"

    def round(self, matrix: Floats) -> Rounded:
        """Returns ``matrix`` [K, N] rounded in blocks."""
        if self.rows is not None:
            return self.rows.rounded(matrix)
        if not self.symmetric:
            return half_quadratic(matrix, self.bits, self.size)
        if self.factor is None:
            return nearest(matrix, self.bits, self.size)
        return second_order(matrix, self.factor, self.bits, self.size)

    def order(self, weight: Weight) -> Order | None:
        """The order of inputs in blocks, which a product has to gather; None: as they are.

        Raises:
            PosexportError: calls of a function would need several.
        """
        if self.rows is None:
            return None
        orders = [self.rows.order(weight.array(call)) for call in range(len(weight.stored))]
        if weight.calls and any(order is not None for order in orders):
            raise PosexportError(
                f"{weight.name} is in a function of the graph, and its checkpoint has an activation order (g_idx); "
                "round it again with --quantizer hqq"
            )
        return orders[0]

    def count(self, weight: Weight) -> int:
        """The number of blocks in a channel; the last one may be padded."""
        return -(-weight.sizes[0] // self.size)


def for_product(weight: Weight, scheme: Scheme) -> Mapping[str, Derived]:
    """B, scales and zero points of MatMulNBits: [N, blocks, bytes], [N, blocks] and [N, bytes of blocks].

    Two numbers of 4 bits are a byte, the first in its low half.
    """
    (_, n), blocks = weight.sizes, scheme.count(weight)
    key, rounded = f"bits{scheme.bits}", _Rounding(weight, scheme)
    tensors = {
        key: Derived(
            ir.DataType.UINT8,
            (n, blocks, scheme.size * scheme.bits // 8),
            lambda read: packed(rounded.values(read), scheme.bits),
        ),
        f"{key}_scale": Derived(ir.DataType.FLOAT, (n, blocks), rounded.scales),
    }
    if not scheme.symmetric:
        tensors[f"{key}_zero"] = Derived(
            ir.DataType.UINT8, (n, -(-blocks * scheme.bits // 8)), lambda read: _zeros(rounded.zeros(read), scheme)
        )
    return tensors


def for_codes(weight: Weight, scheme: Scheme) -> Mapping[str, Derived]:
    """B and absmax of MatMulBnb4: the rows one after another, [N * K / 2] and [N * blocks].

    Two numbers are a byte, the first in its high half, as bitsandbytes stores them.
    """
    (k, n), blocks, rounded = weight.sizes, scheme.count(weight), _Rounding(weight, scheme)

    def values(read: Read) -> NDArray[np.uint8]:
        whole = rounded.values(read).reshape(-1)
        return (whole[0::2] << 4 | whole[1::2]).astype(np.uint8)

    return {
        "nf4": Derived(ir.DataType.UINT8, (n * k // 2,), values),
        "nf4_scale": Derived(ir.DataType.FLOAT, (n * blocks,), lambda read: rounded.scales(read).reshape(-1)),
    }


def for_dequantize(weight: Weight, scheme: Scheme) -> Mapping[str, Derived]:
    """x, scale and zero point of DequantizeLinear along axis 0: [K, N], [blocks, N] and [blocks, N]."""
    (k, n), blocks = weight.sizes, scheme.count(weight)
    signed, signed_type, unsigned, unsigned_type = _TYPES[scheme.bits]
    key, rounded = f"int{scheme.bits}", _Rounding(weight, scheme)

    def values(read: Read) -> Array:
        whole = rounded.values(read).reshape(n, -1).T[:k]
        if scheme.symmetric:
            return (whole.astype(np.int16) - (1 << (scheme.bits - 1))).astype(signed_type)
        return whole.astype(unsigned_type)

    tensors = {
        key: Derived(signed if scheme.symmetric else unsigned, (k, n), values),
        f"{key}_scale": Derived(ir.DataType.FLOAT, (blocks, n), lambda read: rounded.scales(read).T),
    }
    if not scheme.symmetric:
        tensors[f"{key}_zero"] = Derived(
            unsigned, (blocks, n), lambda read: rounded.zeros(read).T.astype(unsigned_type)
        )
    return tensors


class _Rounding:
    """``scheme.round`` for the tensors of one weight; scales and zero points are kept from when its values are made."""

    def __init__(self, weight: Weight, scheme: Scheme) -> None:
        self._scheme = scheme
        self._keeps = not weight.calls  # of a function each call has its own matrix
        self._kept: Rounded | None = None

    def values(self, read: Read) -> NDArray[np.uint8]:
        rounded = self._scheme.round(read())
        if self._keeps:
            self._kept = replace(rounded, values=np.empty(0, np.uint8))  # a slice would keep all of them
        return rounded.values

    def scales(self, read: Read) -> Floats:
        return self._without_values(read).scales

    def zeros(self, read: Read) -> NDArray[np.uint8]:
        return np.asarray(self._without_values(read).zeros)

    def _without_values(self, read: Read) -> Rounded:
        return self._kept or self._scheme.round(read())


def packed(whole: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Integers of few bits as bytes, along the last axis, which has an even size."""
    return whole if bits == 8 else (whole[..., 0::2] | whole[..., 1::2] << 4).astype(np.uint8)


def _zeros(zeros: NDArray[np.uint8], scheme: Scheme) -> NDArray[np.uint8]:
    return packed(np.pad(zeros, ((0, 0), (0, zeros.shape[1] % 2))), scheme.bits)
