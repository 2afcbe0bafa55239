"""Compares profiles: the same matrix, transposed, scaled, part of another, rows in another order, quantized."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from posexport.inspect.audit.ledger.profiles import ELEMENTS, Array, Item, Profile

#: rows of a profile that are compared first
_SAMPLE = 256
#: cosines of two rows' profiles from which they may be one row, and from which they are, by bits
_NEAR = {32: 0.9999, 16: 0.999, 8: 0.97, 4: 0.85}
_EXACT = {32: 0.99999, 16: 0.9999, 8: 0.998, 4: 2.0}
#: rows that show whether two matrices share rows
_SAMPLED = 32
#: rows that find the place of one matrix in another
_ANCHORS = 16
#: relative error up to which two matrices are the same, by bits of the graph's: the larger ones are rounding
SAME = {32: 4e-3, 16: 6e-3, 8: 0.25, 4: 0.5}
#: the same where rows are compared up to a factor: smoothing scales the columns too
SAME_ROWS = 0.6
#: beyond it they are not even variants of one matrix
RELATED = 0.35
#: the error of tables that differ by one row added to all
_SHIFTED = 2e-3
#: rows compared with rows, for matrices with rows in another order
_MOST_PAIRS = 4e7
#: the part of elements that are all of them
_ALL = 0.98
#: by how much more of the elements than of the rows must be there for elements to be counted
_MARGIN = 0.01


@dataclass(frozen=True)
class Match:
    """A tensor of the checkpoint in a weight of the graph.

    Attributes:
        item: the graph's.
        how: for people: "as it is", "transposed", "joined" ...
        error: relative distance.
        first, rows: the rows of the larger one that the smaller one is.
    """

    item: Item
    how: str
    error: float
    first: int = 0
    rows: int = 0


@dataclass(frozen=True)
class _Group:
    """Profiles of one size as normalized vectors."""

    entries: list[tuple[Item, Profile]]
    vectors: Array


class Pool:
    """The items of one side, by sizes."""

    def __init__(self, items: Iterable[Item]) -> None:
        self.items = list(items)
        self.by_length: dict[int, list[tuple[Item, Profile]]] = defaultdict(list)
        sizes: dict[tuple[int, int], list[tuple[Item, Profile]]] = defaultdict(list)
        for item in self.items:
            for profile in item.profiles:
                sizes[profile.length, len(profile.rows)].append((item, profile))
                self.by_length[profile.length].append((item, profile))
        self._scattered: dict[str, tuple[list[Match], float]] = {}
        #: directions of all rows of a length, and where those of each profile begin
        self._rows: dict[int, tuple[Array, Array]] = {}
        self._groups = {
            (size, by_row): _Group(entries, np.stack([_vector(profile, by_row) for _, profile in entries]))
            for size, entries in sizes.items()
            for by_row in (False, True)
            if not (by_row and size[0] == ELEMENTS)
        }

    def same(self, tensor: Item, *, by_row: bool = False) -> Match | None:
        """The nearest item of the same size; ``by_row``: rows may be scaled by a factor each."""
        best: Match | None = None
        for profile in tensor.profiles:
            group = self._groups.get(((profile.length, len(profile.rows)), by_row))
            if group is None or (len(profile.rows) == 1 and len(tensor.profiles) > 1):
                continue  # a vector is compared by its elements
            nearness = group.vectors @ _vector(profile, by_row)
            for index in np.argsort(-nearness)[:3]:
                item, other = group.entries[int(index)]
                error, scale = distance(profile, other, by_row=by_row)
                if best is None or error < best.error:
                    best = Match(item, _how(profile, other, scale, item, by_row=by_row), error)
        return best

    def holding(self, tensor: Item) -> Match | None:
        """A larger item that has the rows, or columns, of ``tensor`` one after the other."""
        best: Match | None = None
        for profile in tensor.profiles:
            if len(profile.rows) < 2:
                continue
            for item, other in self._near(profile, _largest(profile)):
                if len(other.rows) <= len(profile.rows):
                    continue
                first = _place(profile.rows, other.rows, by_row=not item.scaled)
                part = Profile(other.length, other.rows[first : first + len(profile.rows)], other.columns)
                error, _ = distance(profile, part, by_row=not item.scaled)
                if best is None or error < best.error:
                    best = Match(item, "joined", error, first, len(profile.rows))
        return best

    def scattered(self, tensor: Item) -> tuple[list[Match], float]:
        """Items that have rows, or columns, of ``tensor`` in any order, and the part of them that they have.

        Elements count if all are there: some of many are somewhere by chance.
        """
        if tensor.name in self._scattered:
            return self._scattered[tensor.name]
        best: list[Match] = []
        largest = 0.0
        for profile in tensor.profiles:
            have = np.zeros(len(profile.rows), bool)
            matches = []
            sample = np.linspace(0, len(profile.rows) - 1, min(_SAMPLED, len(profile.rows))).astype(int)
            for item, other in self._near(profile, profile.rows[sample], exact=True):
                here = _shared_rows(profile, other, min(item.bits, tensor.bits)) & ~have
                if here.any():
                    matches.append(Match(item, "reordered", 0.0, 0, int(here.sum())))
                    have |= here
            if have.mean() > largest + _MARGIN and (profile.length != ELEMENTS or have.mean() > _ALL):
                best, largest = matches, float(have.mean())
        self._scattered[tensor.name] = best, largest
        return best, largest

    def splits(self, item: Item) -> Iterator[tuple[int, list[Match]]]:
        """Smaller items that are rows, or columns, of ``item``; for each of its profiles how many rows it has."""
        for profile in item.profiles:
            smaller = []
            entries = [entry for entry in self.by_length[profile.length] if 2 <= len(entry[1].rows) < len(profile.rows)]
            if profile.length != ELEMENTS and entries:
                rows = np.concatenate([_largest(other) for _, other in entries])
                nearest = (_directions(profile.rows) @ _directions(rows).T).max(axis=0)
                entries = [entry for entry, near in zip(entries, nearest, strict=True) if near > _NEAR[entry[0].bits]]
            for part, other in entries:
                first = _place(other.rows, profile.rows, by_row=not part.scaled)
                here = Profile(profile.length, profile.rows[first : first + len(other.rows)])
                error, _ = distance(here, other, by_row=not part.scaled)
                if error <= SAME[part.bits]:
                    smaller.append(Match(part, "split", error, first, len(other.rows)))
            yield len(profile.rows), smaller

    def _near(self, profile: Profile, rows: Array, *, exact: bool = False) -> list[tuple[Item, Profile]]:
        """The profiles with a row in the direction of one of ``rows``; ``exact``: up to rounding to half precision."""
        entries = self.by_length[profile.length]
        if profile.length == ELEMENTS or not entries:
            return entries
        if profile.length not in self._rows:
            stacked = _directions(np.concatenate([other.rows for _, other in entries]))
            self._rows[profile.length] = stacked, np.cumsum([0, *(len(other.rows) for _, other in entries[:-1])])
        stacked, starts = self._rows[profile.length]
        nearest = np.maximum.reduceat((_directions(rows) @ stacked.T).max(axis=0), starts)
        least = _EXACT if exact else _NEAR
        return [entry for entry, near in zip(entries, nearest, strict=True) if near > least[entry[0].bits]]


def distance(profile: Profile, other: Profile, *, by_row: bool = False) -> tuple[float, float]:
    """Relative distance of two profiles of a size, and the factor between them."""
    a, b = profile.rows.astype(np.float64), other.rows.astype(np.float64)
    if by_row:
        a, b = _directions(a), _directions(b)
    if profile.length == ELEMENTS:
        # an offset of 1: norms that are stored as 1 + weight
        fits = [(1.0, 0.0), (1.0, 1.0), *([(_factor(a, b), 0.0)] if len(a) >= 8 else [])]
        # a norm's weights are all near 1: what varies counts
        size = float(np.linalg.norm(b - b.mean())) if len(b) >= 8 else float(np.linalg.norm(b))
        errors = [(float(np.linalg.norm(b - factor * a - add)) / (size or 1.0), factor) for factor, add in fits]
        return min(errors)
    factor = _factor(a, b)
    centred = b - b.mean(axis=0)
    size = float(np.linalg.norm(centred)) if len(b) >= 8 else float(np.linalg.norm(b))
    error = float(np.linalg.norm(b - factor * a)) / (size or 1.0)
    if len(b) >= 3 and not by_row and error > _SHIFTED:
        # a table of embeddings to whose rows the one row of another was added
        shifted = float(np.linalg.norm(centred - (a - a.mean(axis=0))))
        if shifted <= _SHIFTED * float(np.linalg.norm(centred)):
            return _SHIFTED, 1.0
    return error, factor


def _factor(a: Array, b: Array) -> float:
    squares = float(np.vdot(a, a))
    return float(np.vdot(a, b)) / squares if squares else 0.0


def _largest(profile: Profile) -> Array:
    """The row with the largest norm, [1, K]."""
    index = int(np.argmax(np.square(profile.rows).sum(axis=1)))
    return profile.rows[index : index + 1]


def _directions(rows: Array) -> Array:
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(norms == 0, 1, norms)


def _vector(profile: Profile, by_row: bool) -> Array:
    rows = profile.rows[np.linspace(0, len(profile.rows) - 1, min(_SAMPLE, len(profile.rows))).astype(int)]
    rows = _directions(rows) if by_row else rows
    if len(rows) >= 4 and not by_row:
        rows = rows - rows.mean(axis=0)
    vector = rows.reshape(-1).astype(np.float32)
    norm = float(np.linalg.norm(vector))
    return np.asarray(vector / (norm or 1.0))


def _how(profile: Profile, other: Profile, scale: float, item: Item, *, by_row: bool) -> str:
    if by_row and item.scaled:
        return "folded"
    if item.bits < 16:
        return f"quantized to {item.bits} bits"
    if abs(scale - 1) > 1e-2:
        return "scaled"
    if profile.columns != other.columns:
        return "transposed"
    return "as it is" if item.bits == 32 else "in half precision"


def _place(rows: Array, among: Array, *, by_row: bool) -> int:
    """The row of ``among`` where ``rows`` begin, if they are there."""
    rows, among = (_directions(rows), _directions(among)) if by_row else (rows, among)
    anchors = rows[:_ANCHORS]
    products = among @ anchors.T
    places = len(among) - len(rows) + 1
    scores = sum(products[i : i + places, i] for i in range(len(anchors)))
    squares = np.concatenate([[0.0], np.cumsum(np.square(among.astype(np.float64)).sum(axis=1))])
    norms = np.sqrt(np.maximum(squares[len(anchors) :][:places] - squares[:places], 1e-30))
    return int(np.argmax(scores / norms))


def _shared_rows(profile: Profile, other: Profile, bits: int) -> Array:
    a, b = profile.rows, other.rows
    if profile.length == ELEMENTS:
        order = np.sort(b[:, 0])
        at = np.searchsorted(order, a[:, 0]).clip(1, max(len(order) - 1, 1))
        gaps = np.minimum(np.abs(order[at - 1] - a[:, 0]), np.abs(order[at % len(order)] - a[:, 0]))
        return np.asarray(gaps <= {32: 1e-6, 16: 5e-4}.get(bits, 0.0) * np.abs(a[:, 0]))
    if bits < 8 or len(a) * len(b) > _MOST_PAIRS:
        return np.zeros(len(a), bool)
    nearest = np.empty(len(a))
    x, y = _directions(a), _directions(b)
    step = max(1, (1 << 22) // len(b))
    for start in range(0, len(a), step):
        nearest[start : start + step] = (y @ x[start : start + step].T).max(axis=0)
    return np.asarray(nearest > _EXACT[bits])


def covered(matches: Sequence[Match], rows: int) -> int:
    """How many of ``rows`` rows the matches have together."""
    have = np.zeros(rows, bool)
    for match in matches:
        have[match.first : match.first + match.rows] = True
    return int(have.sum())
