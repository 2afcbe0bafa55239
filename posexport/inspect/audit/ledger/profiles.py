"""Fingerprints of matrices: a few random projections of every row and of every column.

Rows of ``W`` keep their projections where W is transposed (they are columns then), joined with other matrices along
either axis, split, scaled or reordered. So two matrices are compared by [rows, K] numbers each, and no weight is held
in memory. By Johnson and Lindenstrauss the distance of profiles estimates the distance of the matrices.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
#: projections of a row
K = 8
#: bytes of float32 that are in memory at a time
_CHUNK = 8 << 20
#: elements from which a vector may be a row of a matrix
_ROW = 8
#: elements of a tensor that is also compared flat
FLAT = 1 << 16
#: the length of a profile of single elements
ELEMENTS = 0


@dataclass(frozen=True)
class Profile:
    """Projections of rows.

    Attributes:
        length: elements of a row; `ELEMENTS`: each element is a row.
        rows: [rows, K], of elements [rows, 1].
        columns: these are columns of the tensor.
    """

    length: int
    rows: Array
    columns: bool = False


@dataclass
class Item:
    """A tensor of the checkpoint or of the graph.

    Attributes:
        name: its name there.
        shape: its sizes.
        profiles: of its rows, its columns, and, if it is small, its elements.
        rms: root mean square of its elements.
        plain: all elements are equal, or the tensor has the pattern of a table that is computed.
        bits: see `posexport.inspect.audit.ledger.weights.Weight`; 32 of a checkpoint.
        scaled: see there.
        step: of a quantized one, the root mean square of its rounding error.
    """

    name: str
    shape: tuple[int, ...]
    profiles: list[Profile] = field(default_factory=list)
    rms: float = 0.0
    plain: bool = False
    bits: int = 32
    scaled: bool = True
    step: float = 0.0


def profiled(name: str, array: Array) -> Item:
    """The fingerprints of a tensor, which is read once, in parts."""
    shape = array.shape
    squeezed = array.reshape([size for size in shape if size != 1])
    item = Item(name, shape)
    if squeezed.ndim < 2:
        values = squeezed.reshape(-1).astype(np.float32)
        item.profiles = [Profile(ELEMENTS, values[:, None])]
        if len(values) >= _ROW:  # as the row of a matrix
            item.profiles.append(Profile(len(values), (values @ _random(len(values)))[None]))
        item.rms, item.plain = float(np.sqrt(np.mean(np.square(values)))), _is_plain(values[None])
        return item
    for number, matrix in enumerate(_views(squeezed)):
        right, left, squares = _projections(matrix)
        item.profiles.append(Profile(matrix.shape[1], right))
        if number == 0:
            item.profiles.append(Profile(matrix.shape[0], left, columns=True))
            item.rms = float(np.sqrt(squares / matrix.size))
    if squeezed.size <= FLAT:
        flat = squeezed.astype(np.float32)
        item.profiles.append(Profile(ELEMENTS, flat.reshape(-1, 1)))
        item.profiles.append(Profile(ELEMENTS, np.moveaxis(flat, -1, 0).reshape(-1, 1), columns=True))
    item.plain = _is_plain(squeezed.reshape(-1, squeezed.shape[-1]))
    return item


def _views(array: Array) -> Iterator[Array]:
    """A tensor as matrices; of more than two axes also as one matrix for each leading index, rows or columns first."""
    yield array.reshape(array.shape[0], -1)
    if array.ndim > 2:
        yield array.reshape(-1, array.shape[-1])
        yield np.swapaxes(array, -1, -2).reshape(-1, array.shape[-2])


@lru_cache(maxsize=32)
def _random(length: int) -> Array:
    return np.random.default_rng(length).standard_normal((length, K), dtype=np.float32)


def _projections(matrix: Array) -> tuple[Array, Array, float]:
    """Projections of rows and of columns, and the sum of squares."""
    rows, columns = matrix.shape
    across, down = _random(columns), _random(rows)
    right = np.empty((rows, K), np.float32)
    left = np.zeros((columns, K), np.float64)
    squares, step = 0.0, max(1, _CHUNK // (4 * columns))
    for start in range(0, rows, step):
        part = np.ascontiguousarray(matrix[start : start + step], dtype=np.float32)
        right[start : start + step] = part @ across
        left += part.T @ down[start : start + step]
        squares += float(np.vdot(part, part))
    return right, left.astype(np.float32), squares


def _is_plain(matrix: Array) -> bool:
    """Whether elements are equal, or a formula's: masks, ranges, cosines, filters that are 0 nearly everywhere."""
    rows = np.asarray(matrix[:: max(1, len(matrix) // 64)][:64], dtype=np.float32)
    if len(np.unique(rows[:, :4096])) <= max(2, min(16, rows.size // 8)) or not np.isfinite(rows).all():
        return True
    if np.mean(rows == 0) > 0.5:
        return True
    first = np.unique(np.asarray(matrix[0], dtype=np.float32))
    if len(matrix) > 1 and matrix.shape[1] > 2 and len(first) <= 2:
        return True  # cosines and sines at position 0
    # ranges and slopes: differences, or ratios, of one value
    sample = rows[0][:256].astype(np.float64)
    if len(sample) < 8:
        return False
    return _is_even(sample) or bool((sample > 0).all() and _is_even(np.log(sample)))


def _is_even(values: Array) -> bool:
    """Whether values are an arithmetic sequence."""
    steps = np.diff(values)
    return bool(np.abs(steps - steps.mean()).max() <= 1e-4 * max(abs(values[-1] - values[0]), 1e-30) / len(values) * 8)
