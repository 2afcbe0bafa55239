"""Which parameter of the definition each channel of a stored weight is, and whether it is that parameter, rounded.

Passes pack projections into one, permute channels and transpose; they change no values, so a stored channel's signs
match one row or column of a parameter. Factors that smooth activations are positive and leave signs alone.

Three ways of rounding are known. To nearest: every integer is the one that its block's scale and zero point give, at
most half a step away; only the ends of the range may be further, by a step with fixed zero points (the largest value of
a block is then 7 where it would be 8), and with free ones (HQQ) as long as the block's p-norm is not worse than after
symmetric rounding. By second order (GPTQ): the scale of a block is its parameter's largest magnitude / 8, and the value
that is rounded has been moved by the values rounded before it: errors are measured over blocks; few are far.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from posexport.base.targets.precisions import STORED, QuantizerName
from posexport.proof.quantized.records import Array, Floats, Stored, StoredError

#: the least agreement of signs for a match: 4 bits leave 0.8 and more, other channels have below 0.6
ALIKE = 0.6
#: channels that are searched for in all parameters; the others are tried first where these matched
_PROBES = 48
#: numbers that signs of long channels are sketched by
_SKETCH = 96


@dataclass(frozen=True, eq=False)
class Candidate:
    """A parameter as [N, K], maybe in 16 bits: ``transposed`` where it is stored the other way round."""

    name: str
    matrix: Array
    transposed: bool

    def rows(self, numbers: "Sequence[int] | Array") -> NDArray[np.float32]:
        """These rows in float32."""
        return np.asarray(self.matrix[numbers], np.float32)


#: parameters, with the stored channels and the parameter's rows that these are
Pieces = list[tuple[Candidate, NDArray[np.intp], NDArray[np.intp]]]


@dataclass
class Matched:
    """Where the channels of a stored weight come from.

    Attributes:
        pieces: of each parameter.
        factor: [K], powers of two that all channels were multiplied by.
    """

    stored: Stored
    pieces: Pieces = field(default_factory=list)
    factor: Floats = field(default_factory=lambda: np.ones(1))


#: by the name of a stored weight, and whether it is looked up: `Matched.pieces` and `Matched.factor`
Matches = Mapping[tuple[str, bool], tuple[Pieces, Floats]]


class Matcher:
    """Of one definition's parameters, by name; matrices, also those with further axes of one."""

    def __init__(self, parameters: Mapping[str, NDArray[np.float32]]) -> None:
        self._candidates: dict[int, list[Candidate]] = {}
        self._signs: dict[int, Array] = {}
        for name, array in parameters.items():
            matrix = array.reshape([size for size in array.shape if size > 1] or [1])
            if matrix.ndim == 2:
                for oriented, transposed in ((matrix, False), (matrix.T, True)):
                    self._candidates.setdefault(oriented.shape[1], []).append(Candidate(name, oriented, transposed))
        self._random = np.random.default_rng(0)
        self._plans: dict[int, NDArray[np.float32] | None] = {}

    def match(self, stored: Stored) -> Matched:
        """Its factor is 1. Raises StoredError if a channel is no parameter's."""
        real = stored.real()
        left = np.flatnonzero(real.any(1))
        pieces: Pieces = []
        candidates = self._candidates.get(real.shape[1], [])
        # whole parameters in their order, then channels one by one
        for candidate, offset in self._guesses(real, left, candidates):
            rows = left + offset
            inside = (rows >= 0) & (rows < len(candidate.matrix))
            channels, rows = left[inside], rows[inside]
            good = _agreement(real[channels], candidate.rows(rows)) >= ALIKE
            if good.any():
                pieces.append((candidate, channels[good], rows[good]))
                left = np.setdiff1d(left, channels[good])
            if not len(left):
                break
        if len(left):
            pieces += self._one_by_one(stored, real, left, candidates)
        return Matched(stored, pieces, np.ones(real.shape[1]))

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
    ) -> Pieces:
        places: dict[int, list[tuple[int, int]]] = {}
        for start in range(0, len(left), 1024):
            some = left[start : start + 1024]
            for channel, (which, row) in zip(some, self._nearest(real[some], candidates), strict=True):
                agreement = 0.0 if which < 0 else _agreement(real[[channel]], candidates[which].rows([row]))[0]
                if agreement < ALIKE:
                    raise StoredError(
                        f"{stored.name}: channel {channel} is no channel of a parameter of the definition (signs "
                        f"of the nearest agree to {agreement:.2f}, needed {ALIKE})"
                    )
                places.setdefault(which, []).append((int(channel), row))
        return [
            (candidates[which], *(np.array(column, np.intp) for column in zip(*pairs, strict=True)))  # type: ignore[misc]
            for which, pairs in places.items()
        ]

    def _nearest(self, real: Floats, candidates: Sequence[Candidate]) -> list[tuple[int, int]]:
        """The candidate and row with the signs nearest to each channel's."""
        sketch = self._sketch(real)
        best, where = np.full(len(real), -np.inf), [(-1, -1)] * len(real)
        for which, candidate in enumerate(candidates):
            if id(candidate) not in self._signs:
                self._signs[id(candidate)] = self._sketch(candidate.matrix)
            scores = sketch @ self._signs[id(candidate)].T
            rows = scores.argmax(1)
            top = scores[np.arange(len(rows)), rows]
            for channel in np.flatnonzero(top > best):
                where[channel] = which, int(rows[channel])
            best = np.maximum(best, top)
        return where

    def _sketch(self, matrix: Array) -> NDArray[np.float32]:
        k = matrix.shape[1]
        if k not in self._plans:
            projection = self._random.standard_normal((k, _SKETCH)).astype(np.float32) if k > 2 * _SKETCH else None
            self._plans[k] = projection
        projection = self._plans[k]
        sketch = np.sign(matrix).astype(np.float32)
        if projection is not None:
            sketch = sketch @ projection
        norm = np.linalg.norm(sketch, axis=1, keepdims=True)
        return np.asarray(sketch / np.where(norm == 0, 1, norm), np.float32)


def _agreement(real: Floats, rows: Array) -> Floats:
    """The agreement of signs, from -1 to 1, for each channel; stored zeros do not count."""
    signs = np.sign(real)
    counted = np.abs(signs).sum(1)
    agree = (signs * np.sign(rows)).sum(1)
    # where most of a channel is 0, the little that is not must not decide alone
    return np.asarray(agree / np.maximum(counted, 1))


def factor_of(matched: Matched) -> Floats:
    """Powers of two, [K], that bring the parameters nearest to the stored values."""
    stored, pieces = matched.stored, matched.pieces
    real = stored.real()
    across = np.zeros(real.shape[1])
    square = np.zeros(real.shape[1])
    for candidate, channels, rows in pieces:
        parameter = candidate.rows(rows).astype(np.float64)
        across += np.abs(real[channels] * parameter).sum(0)
        square += (parameter * parameter).sum(0)
    ratio = np.where((across > 0) & (square > 0), across / np.where(square > 0, square, 1), 1)
    near = np.exp2(np.rint(np.log2(ratio)))
    # where all that is multiplied by one factor is a few steps at most, rounding may have moved the ratio
    powers = near * np.array([[1], [0.5], [2]])
    away = np.zeros_like(powers)
    for candidate, channels, rows in pieces:
        parameter = candidate.rows(rows).astype(np.float64)
        steps = [np.abs(stored.steps(channels, parameter * power)).max(0) for power in powers]
        away = np.maximum(away, steps)
    return np.asarray(np.take_along_axis(powers, away.argmin(0)[None], 0)[0])


#: rounding in float32 against float64: a quotient up to 255 errs by so much of a step
SLACK = 4e-3
#: HQQ's norm
_NORM = 0.7
#: errors of second order, in steps: a block with a larger root mean square or mean is far. Of 36 right roundings of
#: weights [40, 40] to [384, 384], by inputs of few directions, none was; of the 36 weights of all-MiniLM-L6-v2, by 400
#: lines of text, at most 0.049 of a weight's blocks and 0.077 of those at one place of all channels
SECOND_ORDER, SECOND_ORDER_MEAN = 1.5, 0.75
SECOND_ORDER_FAR, SECOND_ORDER_FAR_PLACE = 0.15, 0.2
#: the least cosine of a far block with its parameter's: 0.53 there, near 0 where values are exchanged
SECOND_ORDER_COSINE = 0.3
#: where it moves a value by more than a step, it moves at least this share of the matrix's to another one: of 20 right
#: roundings of weights [40, 40] to [384, 384], by 300 to 50,000 inputs, independent and not, the smallest share was
#: 0.0015 (0.22 where a value was more than 1.5 steps away). Fewer are mistakes in a matrix rounded to nearest
SECOND_ORDER_SHARE = 2e-3
#: relative error of a block's scale, which is its largest magnitude / 8 in float32
_EXACT = 1e-5


def check(matched: Matched, quantizer: QuantizerName | None = None) -> None:
    """Raises StoredError if ``matched.stored`` is not its parameter, rounded.

    ``quantizer``: how it was rounded; None: nobody says, and any way is right.
    """
    stored, by_order = matched.stored, quantizer in (None, "gptq")
    kept = quantizer == STORED and stored.highest - stored.lowest < 16
    if stored.order is not None and not kept:
        raise StoredError(f"{stored.name} has its inputs in another order, as only weights of a checkpoint's 4 bits do")
    for candidate, channels, rows in matched.pieces:
        if kept:
            _check_kept(stored, candidate, channels, rows)
            continue
        near = _nearest_whole(stored, channels, candidate.rows(rows), matched.factor)
        if near.all():
            continue
        if not by_order:  # what is right of one channel does not depend on the others
            channels, rows = channels[~near], rows[~near]
        parameter = candidate.rows(rows).astype(np.float64) * matched.factor
        steps = stored.steps(channels, parameter)
        away = np.abs(steps)
        whole = stored.whole[channels].astype(np.int64)
        clipped = ((whole == stored.highest) & (steps > 0.5)) | (_lowest(stored, whole) & (steps < -0.5))
        slack = SLACK + _of_scales(stored, channels)
        wrong = (away > 0.5 + slack) & ~clipped
        free = bool((stored.zero[channels] != _middle(stored)).any())
        if not wrong.any() and free:
            _check_norm(stored, candidate.name, channels, parameter)
            continue
        far = wrong if wrong.any() else away > 1 + slack
        if far.any() and not (by_order and _second_order(stored, channels, parameter, steps, clipped)):
            _fail(stored, candidate.name, channels, far, away)


#: values that are compared at once: they fit the cache of a core
_AT_ONCE = 1 << 17


def _check_kept(stored: Stored, candidate: Candidate, channels: Array, rows: Array) -> None:
    """Raises StoredError where a value is not the parameter's, which a checkpoint has in the same 4 bits."""
    count = max(1, _AT_ONCE // candidate.matrix.shape[1])
    for start in range(0, len(channels), count):
        some = channels[start : start + count]
        parameter = candidate.rows(rows[start : start + count])
        if (stored.real(some) == parameter).all():
            continue
        away = np.abs(stored.steps(some, parameter.astype(np.float64)))
        wrong = away > SLACK + _of_scales(stored, some)
        if wrong.any():
            _fail(stored, candidate.name, some, wrong, away)


def _nearest_whole(stored: Stored, channels: Array, parameter: Array, factor: Floats) -> NDArray[np.bool_]:
    """Of each channel, whether all whole numbers are the nearest, about zero points in the middle: told in float32."""
    n, k = parameter.shape
    near = np.zeros(n, np.bool_)
    blocks = stored.scale.shape[1]
    if blocks * stored.size != k:
        return near
    count, narrow = max(1, _AT_ONCE // k), factor.astype(np.float32)
    for start in range(0, n, count):
        some = channels[start : start + count]
        zero, scale = stored.zero[some], stored.scale[some].astype(np.float32)
        whole = stored.whole[some].astype(np.float32).reshape(len(some), blocks, -1)
        scaled = (parameter[start : start + count].astype(np.float32) * narrow).reshape(whole.shape)
        scaled = np.divide(scaled, scale[..., None], out=scaled, where=scale[..., None] != 0)
        scaled += _middle(stored)
        away = scaled - whole
        good = np.abs(away, out=away).max((1, 2)) <= 1 + SLACK / 2
        # an end of the range stands for what is beyond it
        np.clip(scaled, -127 if stored.highest == 127 else stored.lowest, stored.highest, out=scaled)
        scaled -= whole
        good &= np.abs(scaled, out=scaled).max((1, 2)) <= 0.5 + SLACK / 2
        near[start : start + count] = good & (zero == _middle(stored)).all(1) & (scale != 0).all(1)
    return near


def _of_scales(stored: Stored, channels: Array) -> Floats | float:
    """By how many steps each value may be off because its scale was rounded to 16 bits afterwards."""
    if not stored.scale_error:
        return 0.0
    zero = stored.zero[channels]
    return (
        np.abs(stored.whole[channels] - (zero if zero.shape[1] == 1 else zero[:, stored.blocks])) * stored.scale_error
    )


def _lowest(stored: Stored, whole: Array) -> Array:
    """Whether a value is at the low end of its range; symmetric int8 ends at -127."""
    return np.asarray((whole == stored.lowest) | ((stored.highest == 127) & (whole == -127)))


def _middle(stored: Stored) -> int:
    return (stored.lowest + stored.highest + 1) // 2


def _blocked(stored: Stored, values: Floats) -> Floats:
    """[N, B, size], padded with zeros."""
    n, k = values.shape
    count = stored.scale.shape[1]
    padded = np.zeros((n, count * stored.size))
    padded[:, :k] = values
    return padded.reshape(n, count, stored.size)


def _check_norm(stored: Stored, name: str, channels: Array, parameter: Floats) -> None:
    blocks = _blocked(stored, parameter)
    extreme = np.take_along_axis(blocks, np.abs(blocks).argmax(-1)[..., None], -1)
    half = (stored.highest - stored.lowest + 1) // 2
    scale = np.where(extreme == 0, 1, -extreme / half)
    if stored.scale_error:
        scale = scale.astype(np.float16).astype(np.float64)
    nearest = np.clip(np.rint(blocks / scale), -half, half - 1) * scale
    symmetric = (np.abs(blocks - nearest) ** _NORM).sum(-1)
    error = (np.abs(blocks - _blocked(stored, stored.real(channels))) ** _NORM).sum(-1)
    worse = error > symmetric * (1 + 1e-3) + 1e-12
    if worse.any():
        channel, block = (int(axis[0]) for axis in np.nonzero(worse))
        raise StoredError(
            f"{stored.name}: block {block} of channel {int(channels[channel])} is further from {name} than rounding "
            "to nearest would be"
        )


def _second_order(stored: Stored, channels: Array, parameter: Floats, steps: Floats, clipped: Array) -> bool:
    """Whether rounding by second order can have these errors; ``clipped`` values may err in any scheme."""
    if stored.highest - stored.lowest != 15 or (stored.zero[channels] != _middle(stored)).any():
        return False
    away = np.where(clipped, 0, np.abs(steps))
    largest = np.abs(_blocked(stored, parameter)).max(-1)
    scale = np.abs(stored.scale[channels])
    exact = np.abs(scale * 8 - largest) <= (_EXACT + stored.scale_error) * largest
    if not (exact | (largest == 0)).all():
        return False
    if (away > 1 + SLACK).any() and (away > 0.5 + SLACK).mean() < SECOND_ORDER_SHARE:
        return False
    of_block = _blocked(stored, steps)
    far = (np.sqrt((of_block**2).mean(-1)) > SECOND_ORDER) | (np.abs(of_block.mean(-1)) > SECOND_ORDER_MEAN)
    if far.mean() > SECOND_ORDER_FAR or far.mean(0).max() > SECOND_ORDER_FAR_PLACE:
        return False
    original, real = _blocked(stored, parameter)[far], _blocked(stored, stored.real(channels))[far]
    norms = np.sqrt((original**2).sum(-1) * (real**2).sum(-1))
    return bool(((original * real).sum(-1) >= SECOND_ORDER_COSINE * norms).all() and norms.all())


def _fail(stored: Stored, name: str, channels: Array, wrong: Array, away: Floats) -> None:
    channel, k = (int(axis[0]) for axis in np.nonzero(wrong))
    raise StoredError(
        f"{stored.name}: {int(wrong.sum())} of {wrong.size} values are further from {name} than rounding errs, the "
        f"first in channel {int(channels[channel])} at {k}, by {away[channel, k]:.3g} steps"
    )
