"""When an output is right: its error, the tolerance, and the one table of floors. Imports no torch.

``error = max |y - y64| / max |y64|`` over elements that are not padding; at most the larger of `FACTOR` times PyTorch's
baseline error in the same precision and the floor. That is forgiving: at one point the order of summation, which
differs from processor to processor, decides. That a bundle is as exact as PyTorch as a whole is the rule of
`posexport.proof.report.record`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from posexport.base.spec import BATCH, ENCODER_SEQUENCE, TOKENS, Axis
from posexport.base.targets.dtypes import BY_PRECISION
from posexport.base.targets.precisions import PrecisionName

Array = NDArray[Any]
#: which tokens are no padding, [B, T]; None: all
RealTokens = NDArray[np.bool_] | None

#: unit in the last place of 1.0
EPS: Mapping[PrecisionName, float] = {precision: dtype.eps for precision, dtype in BY_PRECISION.items()}
#: how many times PyTorch's error is allowed
FACTOR = 8
#: an error this small passes whatever PyTorch's is, in eps
FLOOR: Mapping[PrecisionName, int] = {"fp32": 64, "fp16": 4, "bf16": 4}
#: (precision, output) -> (floor in eps, reason). Every exception has its reason; there is none now.
EXCEPTIONS: Mapping[tuple[PrecisionName, str], tuple[int, str]] = {}


#: the note where the reference has no value to compare with
NOT_FINITE = "the float64 reference is not finite"
#: the note where the reference has zeros alone, and the output has others, or there is no other point
ALL_ZERO = "the float64 reference is all zero"


class Measured(NamedTuple):
    """``error`` relative to ``scale`` = max |y64|; infinite, with a note, where there is nothing to measure against.

    0 relative to 0 where both are all zero.
    """

    error: float
    scale: float
    note: str = ""


def floor(precision: PrecisionName, output: str) -> float:
    """The smallest tolerance, relative to scale."""
    eps, _ = EXCEPTIONS.get((precision, output), (FLOOR[precision], ""))
    return eps * EPS[precision]


def tolerance(precision: PrecisionName, output: str, baseline: float) -> float:
    """The largest error allowed, ``baseline`` being PyTorch's largest error over the points of that length."""
    return max(FACTOR * baseline, floor(precision, output))


def measure(y: Array, truth: Array, axes: Sequence[Axis], keep_BT: RealTokens) -> Measured:
    """Error of ``y`` against ``truth``, both shaped as ``axes`` say; of integers, the share that is not equal.

    Where an axis of `TOKENS` is among the axes only tokens with ``keep_BT`` count. A number that is not
    finite where the truth is, padded or not, fails. Where the truth is all zero ``y`` must be zero too: deviations from
    the mean of one token are. Minus infinity is right where the truth is the same.
    """
    if y.shape != truth.shape:
        return Measured(np.inf, 0.0, f"shape {list(y.shape)} instead of {list(truth.shape)}")
    if is_exact(truth):
        return _unequal(y, truth, axes, keep_BT)
    gap = scale = 0.0
    for y_, truth_, keep in rows(y, truth, axes, keep_BT):
        # row by row: a float64 copy of logits over a vocabulary would be the largest array of the whole run
        if bool((np.isfinite(truth_) & ~np.isfinite(y_)).any()):
            return Measured(np.inf, 0.0, "a number that is not finite")
        if keep is not None:
            y_, truth_ = y_[keep], truth_[keep]
        y_, truth_ = counted(y_, truth_)
        if truth_.size:
            if not np.isfinite(truth_).all():
                return Measured(np.inf, 0.0, NOT_FINITE)
            gap = max(gap, float(np.abs(y_.astype(np.float64) - truth_).max()))
            scale = max(scale, float(np.abs(truth_).max()))
    if scale == 0.0:
        return of_zeros(gap)
    return Measured(gap / scale, scale)


def of_zeros(gap: float) -> Measured:
    """The error where the truth is all zero: none where ``gap``, the largest difference, is zero as well."""
    return Measured(np.inf if gap else 0.0, 0.0, ALL_ZERO if gap else "")


def counted(y: Array, truth: Array) -> tuple[Array, Array]:
    """Both without the entries that are minus infinity in both: what is left out is left out by both."""
    left_out = np.isneginf(truth)
    if not left_out.any():
        return y, truth
    left_out &= np.isneginf(y)
    return y[~left_out], truth[~left_out]


def is_exact(array: Array) -> bool:
    """Whether values are integers or booleans, which are right or wrong: lengths, chosen tokens, a mask."""
    return array.dtype.kind in "biu"


def _unequal(y: Array, truth: Array, axes: Sequence[Axis], keep_BT: RealTokens) -> Measured:
    """The share of entries that are not equal, relative to 1."""
    pairs = [(a, b) if keep is None else (a[keep], b[keep]) for a, b, keep in rows(y, truth, axes, keep_BT)]
    compared = sum(b.size for _, b in pairs)
    if not compared:
        return of_zeros(0.0)
    return Measured(sum(int((a != b).sum()) for a, b in pairs) / compared, 1.0)


def rows(y: Array, truth: Array, axes: Sequence[Axis], keep_BT: RealTokens) -> list[tuple[Array, Array, RealTokens]]:
    """Views of each row of the batch with the tokens first, and which tokens count (None: everything does)."""
    if BATCH not in axes:
        return [(y, truth, None)]
    # probabilities have two axes of tokens: of cross attention the keys' padding counts, else the queries'
    order = [axes.index(name) for name in (BATCH, ENCODER_SEQUENCE, *TOKENS[:-1]) if name in axes]
    y, truth = (np.moveaxis(a, order, range(len(order))) for a in (y, truth))
    by_token = keep_BT is not None and len(order) > 1
    return [(y[b], truth[b], keep_BT[b] if by_token and keep_BT is not None else None) for b in range(y.shape[0])]
