"""Which parameter of the definition each channel of a stored weight is, by content.

Passes pack projections into one, permute channels and transpose; they change no numbers, so a stored channel's signs
are those of one row or column of a parameter. Factors that smooth activations are positive: signs do not see them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from posexport.parity.quantized.records import Array, Floats, Stored, StoredError

#: signs of a channel that is found agree so much more than they differ: 4 bits leave 0.8 and more, others below 0.6
ALIKE = 0.6
#: channels that are looked for among all parameters; the others first where these were found
_PROBES = 48
#: numbers that signs of long channels are sketched by
_SKETCH = 96


@dataclass(frozen=True, eq=False)
class Candidate:
    """A parameter as [N, K]: ``transposed`` where it is stored the other way round."""

    name: str
    matrix: NDArray[np.float32]
    transposed: bool


@dataclass
class Matched:
    """Where the channels of a stored weight come from.

    Attributes:
        pieces: of each parameter: the stored channels and the parameter's rows that these are.
        factor: [K], powers of two that all channels were multiplied by.
    """

    stored: Stored
    pieces: list[tuple[Candidate, NDArray[np.intp], NDArray[np.intp]]] = field(default_factory=list)
    factor: Floats = field(default_factory=lambda: np.ones(1))


class Matcher:
    """Of one definition's parameters, by name; matrices, also those with further axes of one."""

    def __init__(self, parameters: Mapping[str, NDArray[np.float32]]) -> None:
        self._candidates: dict[int, list[Candidate]] = {}
        self._signs: dict[int, Array] = {}
        for name, array in parameters.items():
            matrix = array.reshape([size for size in array.shape if size > 1] or [1])
            if matrix.ndim == 2:
                for each, transposed in ((matrix, False), (matrix.T, True)):
                    self._candidates.setdefault(each.shape[1], []).append(Candidate(name, each, transposed))
        self._random = np.random.default_rng(0)
        self._plans: dict[int, NDArray[np.float32] | None] = {}

    def match(self, stored: Stored, *, smoothed: bool) -> Matched:
        """``smoothed``: factors for each of K may have been multiplied in.

        Raises:
            StoredError: a channel is no parameter's.
        """
        real = stored.real()
        left = np.flatnonzero(real.any(1))
        found: list[tuple[Candidate, NDArray[np.intp], NDArray[np.intp]]] = []
        candidates = self._candidates.get(real.shape[1], [])
        # whole parameters in their order, then channels one by one
        for candidate, offset in self._guesses(real, left, candidates):
            rows = left + offset
            inside = (rows >= 0) & (rows < len(candidate.matrix))
            channels, rows = left[inside], rows[inside]
            good = _alike(real[channels], candidate.matrix[rows]) >= ALIKE
            if good.any():
                found.append((candidate, channels[good], rows[good]))
                left = np.setdiff1d(left, channels[good])
            if not len(left):
                break
        if len(left):
            found += self._one_by_one(stored, real, left, candidates)
        factor = _factor(stored, real, found) if smoothed else np.ones(real.shape[1])
        return Matched(stored, found, factor)

    def _guesses(
        self, real: Floats, left: NDArray[np.intp], candidates: Sequence[Candidate]
    ) -> Iterator[tuple[Candidate, int]]:
        probes = left[np.unique(np.linspace(0, len(left) - 1, min(_PROBES, len(left))).astype(int))]
        votes: dict[tuple[int, int], int] = {}
        for channel, (which, row) in zip(probes, self._nearest(real[probes], candidates), strict=True):
            if which >= 0:
                votes[which, row - int(channel)] = votes.get((which, row - int(channel)), 0) + 1
        for which, offset in sorted(votes, key=lambda key: -votes[key]):
            yield candidates[which], offset

    def _one_by_one(
        self, stored: Stored, real: Floats, left: NDArray[np.intp], candidates: Sequence[Candidate]
    ) -> list[tuple[Candidate, NDArray[np.intp], NDArray[np.intp]]]:
        places: dict[int, list[tuple[int, int]]] = {}
        for start in range(0, len(left), 1024):
            some = left[start : start + 1024]
            for channel, (which, row) in zip(some, self._nearest(real[some], candidates), strict=True):
                alike = 0.0 if which < 0 else _alike(real[[channel]], candidates[which].matrix[[row]])[0]
                if alike < ALIKE:
                    raise StoredError(
                        f"{stored.name}: channel {channel} is no channel of a parameter of the definition (signs "
                        f"of the nearest agree to {alike:.2f}, needed {ALIKE})"
                    )
                places.setdefault(which, []).append((int(channel), row))
        return [
            (candidates[which], *(np.array(each, np.intp) for each in zip(*pairs, strict=True)))  # type: ignore[misc]
            for which, pairs in places.items()
        ]

    def _nearest(self, real: Floats, candidates: Sequence[Candidate]) -> list[tuple[int, int]]:
        """The candidate and its row whose signs are nearest to each channel's."""
        wanted = self._sketch(real)
        best, where = np.full(len(real), -np.inf), [(-1, -1)] * len(real)
        for which, candidate in enumerate(candidates):
            if id(candidate) not in self._signs:
                self._signs[id(candidate)] = self._sketch(candidate.matrix)
            scores = wanted @ self._signs[id(candidate)].T
            rows = scores.argmax(1)
            top = scores[np.arange(len(rows)), rows]
            for channel in np.flatnonzero(top > best):
                where[channel] = which, int(rows[channel])
            best = np.maximum(best, top)
        return where

    def _sketch(self, matrix: Array) -> NDArray[np.float32]:
        k = matrix.shape[1]
        if k not in self._plans:
            plan = self._random.standard_normal((k, _SKETCH)).astype(np.float32) if k > 2 * _SKETCH else None
            self._plans[k] = plan
        plan = self._plans[k]
        sketch = np.sign(matrix).astype(np.float32)
        if plan is not None:
            sketch = sketch @ plan
        norm = np.linalg.norm(sketch, axis=1, keepdims=True)
        return np.asarray(sketch / np.where(norm == 0, 1, norm), np.float32)


def _alike(real: Floats, rows: Array) -> Floats:
    """How much more signs agree than differ, from -1 to 1, of each channel; what is stored as 0 does not count."""
    signs = np.sign(real)
    counted = np.abs(signs).sum(1)
    agree = (signs * np.sign(rows)).sum(1)
    # where most of a channel is 0, the little that is not must not decide alone
    return np.asarray(agree / np.maximum(counted, 1))


def _factor(
    stored: Stored, real: Floats, found: Sequence[tuple[Candidate, NDArray[np.intp], NDArray[np.intp]]]
) -> Floats:
    """Powers of two, [K], that bring the parameters nearest to what is stored."""
    across = np.zeros(real.shape[1])
    square = np.zeros(real.shape[1])
    for candidate, channels, rows in found:
        own = candidate.matrix[rows].astype(np.float64)
        across += np.abs(real[channels] * own).sum(0)
        square += (own * own).sum(0)
    ratio = np.where((across > 0) & (square > 0), across / np.where(square > 0, square, 1), 1)
    near = np.exp2(np.rint(np.log2(ratio)))
    # where all that is multiplied by one factor is a few steps at most, rounding may have moved the ratio
    powers = near * np.array([[1], [0.5], [2]])
    away = np.zeros_like(powers)
    for candidate, channels, rows in found:
        own = candidate.matrix[rows].astype(np.float64)
        steps = [np.abs(stored.steps(channels, own * power)).max(0) for power in powers]
        away = np.maximum(away, steps)
    return np.asarray(np.take_along_axis(powers, away.argmin(0)[None], 0)[0])
