"""Whether a stored weight is its parameter, up to what rounding to its steps may err.

Three ways of rounding are known. To nearest: every whole number is the one that its block's scale and zero point say,
at most half a step away; only the ends of the range may be further, by a step with fixed zero points (the largest
value of a block is then 7 where it would be 8), and with free ones (HQQ) as long as the block's p-norm is not worse
than symmetric rounding's. By second order (GPTQ): the scale of a block is its parameter's largest magnitude / 8, but
rounded is a value that what was rounded before it has moved: errors are measured over blocks, few of which are far.
"""

import numpy as np

from posexport.parity.quantized.match import Matched
from posexport.parity.quantized.records import Array, Floats, Stored, StoredError

#: rounding in float32 against float64: a quotient up to 255 errs by so much of a step
SLACK = 4e-3
#: HQQ's norm
_NORM = 0.7
#: errors of second order, in steps: a block is far whose root mean square or mean is larger. Of 36 right roundings of
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
#: the scale of a block of such is its largest magnitude / 8 to within float32
_EXACT = 1e-5


def check(matched: Matched) -> None:
    """Raise StoredError where ``matched.stored`` is not what it was found to be."""
    stored = matched.stored
    for candidate, channels, rows in matched.pieces:
        own = candidate.matrix[rows].astype(np.float64) * matched.factor
        steps = stored.steps(channels, own)
        away = np.abs(steps)
        whole = stored.whole[channels].astype(np.int64)
        clipped = ((whole == stored.highest) & (steps > 0.5)) | (_lowest(stored, whole) & (steps < -0.5))
        slack = SLACK + _of_scales(stored, channels)
        wrong = (away > 0.5 + slack) & ~clipped
        if wrong.any():
            if not _second_order(stored, channels, own, steps, clipped):
                _fail(stored, candidate.name, channels, wrong, away)
            continue
        free = bool((stored.zero[channels] != _middle(stored)).any())
        if free:
            _check_norm(stored, candidate.name, channels, own)
        elif (far := away > 1 + slack).any() and not _second_order(stored, channels, own, steps, clipped):
            _fail(stored, candidate.name, channels, far, away)


def _of_scales(stored: Stored, channels: Array) -> Floats | float:
    """How many steps each value may be further away because its scale was rounded to 16 bits after it."""
    if not stored.scale_error:
        return 0.0
    zero = stored.zero[channels]
    return (
        np.abs(stored.whole[channels] - (zero if zero.shape[1] == 1 else zero[:, stored.blocks])) * stored.scale_error
    )


def _lowest(stored: Stored, whole: Array) -> Array:
    """At the low end; symmetric int8 goes to -127."""
    return np.asarray((whole == stored.lowest) | ((stored.highest == 127) & (whole == -127)))


def _middle(stored: Stored) -> int:
    return (stored.lowest + stored.highest + 1) // 2


def _blocked(stored: Stored, values: Floats) -> Floats:
    """[N, B, size], with zeros behind the last value."""
    n, k = values.shape
    count = stored.scale.shape[1]
    padded = np.zeros((n, count * stored.size))
    padded[:, :k] = values
    return padded.reshape(n, count, stored.size)


def _check_norm(stored: Stored, name: str, channels: Array, own: Floats) -> None:
    blocks = _blocked(stored, own)
    extreme = np.take_along_axis(blocks, np.abs(blocks).argmax(-1)[..., None], -1)
    half = (stored.highest - stored.lowest + 1) // 2
    scale = np.where(extreme == 0, 1, -extreme / half)
    if stored.scale_error:
        scale = scale.astype(np.float16).astype(np.float64)
    plain = np.clip(np.rint(blocks / scale), -half, half - 1) * scale
    symmetric = (np.abs(blocks - plain) ** _NORM).sum(-1)
    found = (np.abs(blocks - _blocked(stored, stored.real(channels))) ** _NORM).sum(-1)
    worse = found > symmetric * (1 + 1e-3) + 1e-12
    if worse.any():
        channel, block = (int(each[0]) for each in np.nonzero(worse))
        raise StoredError(
            f"{stored.name}: block {block} of channel {int(channels[channel])} is further from {name} than rounding "
            "to nearest would be"
        )


def _second_order(stored: Stored, channels: Array, own: Floats, steps: Floats, clipped: Array) -> bool:
    """Whether errors may be those of rounding by second order; ``clipped`` ones are those of any."""
    if stored.highest - stored.lowest != 15 or (stored.zero[channels] != _middle(stored)).any():
        return False
    away = np.where(clipped, 0, np.abs(steps))
    largest = np.abs(_blocked(stored, own)).max(-1)
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
    given, real = _blocked(stored, own)[far], _blocked(stored, stored.real(channels))[far]
    norms = np.sqrt((given**2).sum(-1) * (real**2).sum(-1))
    return bool(((given * real).sum(-1) >= SECOND_ORDER_COSINE * norms).all() and norms.all())


def _fail(stored: Stored, name: str, channels: Array, wrong: Array, away: Floats) -> None:
    channel, k = (int(each[0]) for each in np.nonzero(wrong))
    raise StoredError(
        f"{stored.name}: {int(wrong.sum())} of {wrong.size} values are further from {name} than rounding errs, the "
        f"first in channel {int(channels[channel])} at {k}, by {away[channel, k]:.3g} steps"
    )
