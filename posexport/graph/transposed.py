"""Copies of transposed matrices: an exporter stores a Linear's weight as a view with its axes exchanged."""

from collections.abc import Callable, Iterator
from typing import IO, Any

import numpy as np
import onnx_ir as ir
from numpy.typing import DTypeLike, NDArray

Array = NDArray[Any]

#: rows and columns that fit the cache of a core
_BLOCK = 64
#: elements that are put in order at once while a file is written
_PART = 1 << 20


def contiguous(array: Array) -> Array:
    """``array`` in C order; a transposed matrix is copied in blocks, five times as fast as by NumPy."""
    if array.ndim != 2 or array.strides[0] >= array.strides[1]:
        return np.ascontiguousarray(array)
    copied = np.empty(array.shape, array.dtype)
    _copy(array, copied)
    return copied


def _copy(array: Array, copied: Array) -> None:
    """Copies a transposed matrix in blocks."""
    for row in range(0, array.shape[0], _BLOCK):
        for column in range(0, array.shape[1], _BLOCK):
            block = slice(row, row + _BLOCK), slice(column, column + _BLOCK)
            copied[block] = array[block]


def parts(array: Array, dtype: DTypeLike) -> Iterator[Array]:
    """``array`` in C order as ``dtype``, one part after another; the memory of each is used again for the next.

    Rows of a transposed matrix are columns of the stored one: these are cast first, and their cast values put in order.
    """
    dtype = np.dtype(dtype)
    if array.ndim == 2 and array.strides[0] < array.strides[1]:
        rows, length = array.shape
        step = max(1, _PART // max(1, length))
        cast, ordered = np.empty((length, step), dtype), np.empty((step, length), dtype)
        for row in range(0, rows, step):
            count = min(step, rows - row)
            np.copyto(cast[:, :count], array[row : row + count].T)
            _copy(cast[:, :count].T, ordered[:count])
            yield ordered[:count]
    elif array.dtype == dtype:
        yield np.ascontiguousarray(array)
    else:
        flat = np.ascontiguousarray(array).reshape(-1)
        cast = np.empty(min(_PART, flat.size), dtype)
        for start in range(0, flat.size, _PART):
            part = flat[start : start + _PART]
            np.copyto(cast[: part.size], part)
            yield cast[: part.size]


class InParts(ir.LazyTensor):
    """A tensor that is written in parts.

    Args:
        func: the whole tensor.
        in_parts: its values in C order, as of `parts`.
        dtype: the type of both.
        shape: the shape.
        name: the name.
    """

    def __init__(
        self,
        func: Callable[[], ir.TensorProtocol],
        in_parts: Callable[[], Iterator[Array]],
        dtype: ir.DataType,
        shape: ir.Shape,
        *,
        name: str | None,
    ) -> None:
        super().__init__(func, dtype, shape, name=name)
        self._in_parts = in_parts

    def tofile(self, file: IO[bytes]) -> None:
        for part in self._in_parts():
            file.write(part.reshape(-1).view(np.uint8).data)


def beside(arrays: list[Array]) -> Array:
    """Matrices joined along the last axis; transposed ones stay one transposed matrix."""
    if all(array.ndim == 2 and array.flags.f_contiguous for array in arrays):
        return np.concatenate([array.T for array in arrays]).T
    return np.concatenate(arrays, -1)
