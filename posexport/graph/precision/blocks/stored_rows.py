"""Scales and zero points of weights that a checkpoint has in 4 bits, for the same rows in a graph.

Passes move, pack and permute the rows of weights. So a row is known by its content, whatever it is part of by then.

Blocks have consecutive inputs. GPTQ's activation order (``desc_act``) scatters groups over the inputs: a graph stores
these rows in the order of their groups, and a Gather brings the input of the product into the same order.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from posexport.errors import PosexportError
from posexport.graph.precision.blocks.rounding import Floats, Rounded

#: values that are looked at together
_AT_ONCE = 1 << 17
_BITS, _MIDDLE = 4, 8
#: block size for rows with a single scale
_SPLIT = 128
#: how the name of the indices ends by which a product gathers its inputs
ORDER = "activation_order"
Order = NDArray[np.int64]


@dataclass(frozen=True)
class _Table:
    """Rows of one width, ordered by `_keys`: their scales float32 [rows, blocks] and zero points uint8.

    ``orders``: [rows], of each the number of the order of its inputs.
    """

    keys: NDArray[np.uint64]
    scales: Floats
    zeros: NDArray[np.uint8]
    orders: NDArray[np.int64]


@dataclass
class StoredRows:
    """Rows [K] of weights, each (whole - zero) * scale in blocks of `size` inputs.

    Attributes:
        unequal: names of weights with groups of several sizes; they have no rows here.
        symmetric: whether 0 is in the middle of every group.
        codes: float32 [16], ascending, the values of the whole numbers (NF4); None: their distances from zero.
    """

    unequal: set[str] = field(default_factory=set)
    symmetric: bool = True
    codes: Floats | None = None
    _orders: dict[bytes, int] = field(default_factory=dict)
    _added: dict[str, tuple[int, _Table]] = field(default_factory=dict)

    def add(self, name: str, real: Floats, scales: Floats, zeros: NDArray[np.uint8], order: Order) -> None:
        """A weight ``real`` [N, K] with a scale and a zero point for each of its groups, [N, G].

        ``order``: [K], the inputs in which groups are blocks.
        """
        number = self._orders.setdefault(order.tobytes(), len(self._orders))
        self._added[name] = real.shape[1], _Table(_keys(real), scales, zeros, np.full(len(real), number))
        self.symmetric &= bool((zeros == _MIDDLE).all())
        self.__dict__.pop("_tables", None)

    def __len__(self) -> int:
        return len(self._added) + len(self.unequal)

    @property
    def size(self) -> int:
        """How many inputs share a scale; PosexportError where weights differ."""
        of_all = self._added.values()
        sizes = {_SPLIT if table.scales.shape[1] == 1 else k // table.scales.shape[1] for k, table in of_all}
        if len(sizes) > 1:
            raise PosexportError(
                f"the checkpoint's weights have groups of {' and '.join(map(str, sorted(sizes)))} inputs, and one size "
                "is kept; convert it with --precision fp32, or round it again with --quantizer hqq"
            )
        return sizes.pop()

    def has(self, matrix: Floats) -> bool:
        """Whether the first column of ``matrix`` [K, N], which is a row of a weight, is known."""
        return len(matrix) in self._tables and bool(self._first(matrix)[1].all())

    def order(self, matrix: Floats) -> Order | None:
        """The order of the inputs of ``matrix`` [K, N] in its blocks, by its first column; None: as they are."""
        return self._numbered(int(self._tables[len(matrix)].orders[self._first(matrix)[0]][0]))

    def rounded(self, matrix: Floats) -> Rounded:
        """``matrix`` [K, N] in the whole numbers that the checkpoint has, its inputs by `order`.

        Raises:
            PosexportError: it has rows of another weight, or of another order.
        """
        k, n = matrix.shape
        size, table, order = self.size, self._tables[k], self.order(matrix)
        count = -(-k // size)
        values = np.empty((n, count, size), np.uint8)
        scales, zeros = np.empty((n, count), np.float32), np.empty((n, count), np.uint8)
        unlike, orders = 0, set[int]()
        for some in _pieces(n, k):
            rows = np.ascontiguousarray(matrix[:, some].T, np.float32)
            places, known = _lookup(table, _keys(rows))
            orders.update(table.orders[places[known]].tolist())
            # a group of all inputs is several blocks
            repeats = count // table.scales.shape[1]
            scales[some] = np.repeat(table.scales[places], repeats, axis=1)
            zeros[some] = np.repeat(table.zeros[places], repeats, axis=1)
            blocks = np.zeros((len(rows), count * size), np.float32)
            blocks[:, :k] = rows if order is None else rows[:, order]
            blocks = blocks.reshape(len(rows), count, size)
            step, middle = scales[some][..., None], zeros[some][..., None].astype(np.float32)
            whole = blocks / np.where(step == 0, 1, step)
            if self.codes is None:
                whole += middle
                np.clip(np.rint(whole, out=whole), 0, (1 << _BITS) - 1, out=whole)
                values[some] = whole
                whole -= middle
            else:
                values[some] = np.searchsorted((self.codes[1:] + self.codes[:-1]) / 2, whole)
                whole[...] = self.codes[values[some]]
            whole *= step
            unlike += int((~known | (whole != blocks).any((1, 2))).sum())
        if len(orders) > 1:
            raise PosexportError(
                "weights with the same input, such as of queries and keys, have several activation orders (g_idx) in "
                "the checkpoint, and their product has one; round them again with --quantizer hqq"
            )
        if unlike:
            raise PosexportError(
                f"{unlike} of {n} channels of a weight are not as the checkpoint has them in 4 bits, next to others "
                "that are; round all of them again with --quantizer hqq"
            )
        return Rounded(values, scales, None if self.symmetric else zeros)

    def _first(self, matrix: Floats) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """`_lookup` of the first column."""
        return _lookup(self._tables[len(matrix)], _keys(np.ascontiguousarray(matrix[:, :1].T, np.float32)))

    def _numbered(self, number: int) -> Order | None:
        order = np.frombuffer(list(self._orders)[number], np.int64)
        return None if np.array_equal(order, np.arange(len(order))) else order

    @cached_property
    def _tables(self) -> dict[int, _Table]:
        by_width: dict[int, list[_Table]] = defaultdict(list)
        for k, table in self._added.values():
            by_width[k].append(table)
        return {k: _joined(tables) for k, tables in by_width.items()}


def _joined(tables: list[_Table]) -> _Table:
    fields = zip(*((t.keys, t.scales, t.zeros, t.orders) for t in tables), strict=True)
    keys, *values = (np.concatenate(parts) for parts in fields)
    by_key = np.argsort(keys, kind="stable")
    return _Table(keys[by_key], *(array[by_key] for array in values))


def _lookup(table: _Table, keys: NDArray[np.uint64]) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """The place of each key, and whether it is there."""
    places = np.minimum(np.searchsorted(table.keys, keys), len(table.keys) - 1)
    return places, table.keys[places] == keys


def _keys(rows: Floats) -> NDArray[np.uint64]:
    """A number for each row of ``rows`` [N, K], contiguous: its bits, multiplied by random odd numbers and summed."""
    n, k = rows.shape
    pairs = np.ascontiguousarray(rows).view(np.uint64)  # K is a multiple of eight
    factors = np.random.default_rng(k).integers(0, 1 << 63, k // 2, np.uint64) * 2 + 1
    return np.concatenate([pairs[some] @ factors for some in _pieces(n, k)])


def _pieces(n: int, k: int) -> Iterator[slice]:
    """``n`` rows of ``k`` values in pieces that fit the cache of a core."""
    count = max(1, _AT_ONCE // k)
    return (slice(start, start + count) for start in range(0, n, count))
