"""Which parameters a stored tensor of floating point numbers holds, bit by bit.

Graphs transpose weights, pack several into one, split one, fold small ones (1 + w), and name them as they like: what
they hold says which they are. Candidates are selected by the first elements of every row, then compared whole.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from posexport.graph.transposed import contiguous
from posexport.proof.quantized.factors import vectors
from posexport.sources.lazy_parameters import numbers, values
from posexport.sources.memory_mapped import release

if TYPE_CHECKING:
    from torch import Tensor

Array = NDArray[Any]
#: elements at the start of a row that select candidates
_PREFIX = 8
#: rows that are compared at once, and candidates of one row that are tried
_ROWS, _TRIED = 256, 64
#: an odd number with as many bits set as not, by which a product spreads bits
_MIXES = np.uint64(0x9E3779B97F4A7C15)
#: parameters up to so many elements are also looked for reordered and folded
_SMALL = 1 << 21
#: what is folded into a small parameter: norms of Gemma's family, decays of state space models
_FOLDED: dict[str, Callable[[Array], Array]] = {
    "p": lambda p: p,
    "1 + p": lambda p: np.float32(1) + p,
    "-exp(p)": lambda p: -np.exp(p),
    "-p": lambda p: -p,
}


@dataclass(frozen=True)
class Piece:
    """Rows of a parameter.

    Attributes:
        name: of the parameter.
        form: ``rows``, ``columns``, or how a whole parameter is reordered or folded.
        start: the first of the parameter's rows or columns.
        count: of them; None: all from ``start`` on.
    """

    name: str
    form: str
    start: int = 0
    count: int | None = None


@dataclass(frozen=True)
class Content:
    """What a tensor holds: runs of pieces, each with its alternatives; ``across``: the pieces are columns of it."""

    runs: tuple[tuple[Piece, ...], ...]
    across: bool = False

    @property
    def names(self) -> set[str]:
        """Parameters of which any may be in it."""
        return {piece.name for run in self.runs for piece in run}


class Parameters:
    """Parameters of one model; ``graph``: by the names that a graph of a part of it has for them."""

    def __init__(self, parameters: "Mapping[str, Tensor]", graph: "Mapping[str, Tensor]") -> None:
        self.aliases: dict[str, list[str]] = {}
        self._tensors: dict[str, Tensor] = {}
        first: dict[tuple[int, ...], str] = {}
        for name, tensor in parameters.items():
            key = _key(tensor)
            if tensor.numel():
                known = first.setdefault(key, name)
                self.aliases.setdefault(known, []).append(name)
                self._tensors.setdefault(known, tensor)
        #: the first name of each, by all of its names
        self.named = {name: first[_key(each)] for name, each in {**graph, **parameters}.items() if _key(each) in first}
        self._tables: dict[tuple[np.dtype[Any], int], _Table] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._tensors[name].shape)

    def array(self, name: str) -> Array:
        return np.asarray(values(self._tensors[name]).numpy())

    @cached_property
    def vectors(self) -> Mapping[str, Array]:
        return vectors({name: self.array(name) for name, tensor in self._tensors.items() if tensor.ndim == 1})

    def matrix(self, name: str) -> Array:
        """A parameter [N, ...] as a matrix [N, K], in the type that it is stored in."""
        array = numbers(self._tensors[name])
        return array.reshape(len(array), -1)

    def free(self, names: Iterable[str]) -> None:
        """Give the pages of parameters that were read back."""
        release([self._tensors[name] for name in names])  # type: ignore[misc]

    def content(self, array: Array) -> Content | None:
        """What ``array`` holds; None: no parameter."""
        if array.size == 0:
            return None
        squeezed = array.reshape([size for size in array.shape if size > 1] or [1])
        if squeezed.ndim == 2:
            for across, matrix in ((False, squeezed), (True, squeezed.T)):
                runs = self._runs(matrix, self._rows(array.dtype, matrix.shape[1]))
                if runs is not None:
                    return Content(runs, across)
        if squeezed.ndim == 1:
            runs = self._vectors(squeezed)
            if runs is not None:
                return Content(runs)
        whole = tuple(self._whole(squeezed))
        return Content((whole,)) if whole else None

    def _rows(self, dtype: np.dtype[Any], width: int) -> "_Table":
        key = dtype, width
        if key not in self._tables:
            table = _Table()
            for name, tensor in self._tensors.items():
                if tensor.ndim < 2:
                    continue
                matrix = self.matrix(name)
                for form, oriented in (("rows", matrix), ("columns", matrix.T)):
                    if oriented.shape[1] == width:
                        table.add(name, form, _as(oriented[:, :_PREFIX], dtype))
                self.free([name])
            self._tables[key] = table
        return self._tables[key]

    def _runs(self, matrix: Array, table: "_Table") -> tuple[tuple[Piece, ...], ...] | None:
        runs, at = [], 0
        while at < len(matrix):
            longest = 0
            pieces: list[Piece] = []
            for name, form, start in table.at(np.ascontiguousarray(matrix[at : at + 1, :_PREFIX]), at):
                oriented = self.matrix(name) if form == "rows" else self.matrix(name).T
                count = _equal_rows(matrix[at:], oriented[start:])
                self.free([name])
                piece = Piece(name, form, start, None if start + count == len(oriented) else count)
                if count > longest:
                    longest, pieces = count, [piece]
                elif count and count == longest:
                    pieces.append(piece)
            if not longest:
                return None
            runs.append(tuple(pieces))
            at += longest
        return tuple(runs)

    def _vectors(self, vector: Array) -> tuple[tuple[Piece, ...], ...] | None:
        """Vectors one after the other, zeros between them (Whisper's keys have no bias), or a part of one."""
        vectors = [(name, self._tensors[name].numel()) for name in self if self._tensors[name].ndim == 1]
        runs: list[tuple[Piece, ...]] = []
        at, known = 0, False
        while at < len(vector):
            longest = 0
            pieces: list[Piece] = []
            for name, size in vectors:
                if longest <= size <= len(vector) - at and _same(self.array(name), vector[at : at + size]):
                    pieces = [*(pieces if size == longest else []), Piece(name, "rows")]
                    longest = size
            known |= bool(pieces)
            if not longest:
                longest = _zeros(vector[at:])
                pieces = [Piece("", "zeros", 0, longest)]
            if not longest:
                break
            runs.append(tuple(pieces))
            at += longest
        if known and at == len(vector):
            return tuple(runs)
        parts = [piece for name, size in vectors if size > len(vector) for piece in self._part(name, vector)]
        return (tuple(parts),) if parts else None

    def _part(self, name: str, vector: Array) -> Iterator[Piece]:
        whole = _as(self.array(name), vector.dtype)
        for start in np.flatnonzero(_bits(whole)[: len(whole) - len(vector) + 1] == _bits(vector)[0]):
            if _same(whole[start : start + len(vector)], vector):
                count = None if start + len(vector) == len(whole) else len(vector)
                yield Piece(name, "rows", int(start), count)

    def _whole(self, array: Array) -> Iterator[Piece]:
        """Parameters that ``array`` is reordered or folded."""
        for name, tensor in self._tensors.items():
            if tensor.numel() != array.size or array.size > _SMALL:
                continue
            parameter = self.array(name).reshape([size for size in tensor.shape if size > 1] or [1])
            for fold, make in _FOLDED.items():
                cast = _as(make(parameter), array.dtype)
                if _same(cast.reshape(-1), array.reshape(-1)):
                    yield Piece(name, fold)
                    continue
                for axes in permutations(range(cast.ndim)) if 1 < cast.ndim <= 4 else ():
                    if cast.transpose(axes).shape == array.shape and _same(cast.transpose(axes), array):
                        yield Piece(name, f"{fold} by {axes}")
                        break


class _Table:
    """Rows of parameters by their first elements, of which it keeps a number each."""

    def __init__(self) -> None:
        self._parts: list[tuple[str, str]] = []
        self._numbers: list[Array] = []

    def add(self, name: str, form: str, prefixes: Array) -> None:
        self._parts.append((name, form))
        self._numbers.append(_mixed(prefixes))

    def at(self, prefix: Array, place: int) -> Sequence[tuple[str, str, int]]:
        """Candidates, those at the start of a parameter or at the same place first."""
        if not self._parts:
            return []
        numbers, which, rows = self._sorted
        start, end = (int(np.searchsorted(numbers, _mixed(prefix)[0], side)) for side in ("left", "right"))
        found = zip(which[start:end].tolist(), rows[start:end].tolist(), strict=True)
        candidates = [(*self._parts[part], row) for part, row in found]
        if len(candidates) <= _TRIED:
            return candidates
        return sorted(candidates, key=lambda row: row[2] not in (0, place))[:_TRIED]

    @cached_property
    def _sorted(self) -> tuple[Array, Array, Array]:
        """The numbers in rising order, with the part and the row of each."""
        sizes = [len(each) for each in self._numbers]
        which = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
        rows = np.concatenate([np.arange(size, dtype=np.int32) for size in sizes])
        numbers = np.concatenate(self._numbers)
        self._numbers.clear()
        order = np.argsort(numbers, kind="stable")
        return numbers[order], which[order], rows[order]


def _mixed(prefixes: Array) -> NDArray[np.uint64]:
    """A number for each row [N, K]; rows that differ may have the same one, as each candidate is compared whole."""
    columns = np.ascontiguousarray(prefixes).view(f"u{prefixes.itemsize}")
    number = np.zeros(len(columns), np.uint64)
    for column in columns.T:
        number = (number ^ column) * _MIXES
        number ^= number >> np.uint64(32)
    return number


def _key(tensor: "Tensor") -> tuple[int, ...]:
    return (tensor.data_ptr(), *tensor.shape)


def _as(array: Array, dtype: np.dtype[Any]) -> Array:
    with np.errstate(over="ignore"):
        return np.asarray(array.astype(dtype, copy=False))


def _bits(array: Array) -> Array:
    return array.view(f"u{array.itemsize}")


def _same(parameter: Array, stored: Array) -> bool:
    cast = _as(parameter, stored.dtype)
    return cast.shape == stored.shape and bool(
        (_bits(np.ascontiguousarray(cast)) == _bits(np.ascontiguousarray(stored))).all()
    )


def _zeros(vector: Array) -> int:
    other = np.flatnonzero(vector != 0)
    return int(other[0]) if len(other) else len(vector)


def _equal_rows(stored: Array, parameter: Array) -> int:
    """How many rows at the start of both have the same bits."""
    count = min(len(stored), len(parameter))
    for start in range(0, count, _ROWS):
        end = min(start + _ROWS, count)
        cast = contiguous(_as(parameter[start:end], stored.dtype))
        equal = (_bits(cast) == _bits(contiguous(stored[start:end]))).all(1)
        if not equal.all():
            return start + int(np.argmin(equal))
    return count
