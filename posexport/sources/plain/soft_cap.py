"""Scores that are kept below a cap by a hyperbolic tangent, as in Gemma 2: scale and cap, of what a softmax shows.

Gemma team, "Gemma 2" (arXiv:2408.00118), section 2, "logit soft-capping". Shape letters: B batch, H heads, T tokens.
"""

from collections.abc import Callable

import torch
from torch import Tensor

#: how far the largest score may be within or beyond the bend of the tangent, as powers of ten, and how many are tried
_LEAST, _MOST, _TRIED = -3, 2, 101
#: steps from there on, each of which doubles the digits
_STEPS = 30


def fitted(
    s_BHTT: Tensor, y_BHTT: Tensor, relative: Callable[[Tensor], Tensor], fits: Callable[[Tensor], bool]
) -> tuple[float, float] | None:
    """``scale`` and ``cap`` with which ``relative(cap tanh(scale s / cap))`` is ``y``; None where no such are.

    Least squares by Gauss and Newton, from the nearest of some.
    """
    bends = torch.logspace(_LEAST, _MOST, _TRIED, dtype=torch.float64) / s_BHTT.abs().max()
    tangents = (relative((bend * s_BHTT).tanh()) for bend in bends)
    starts = [(float((t * y_BHTT).sum() / (t * t).sum().clamp(min=1e-300)), t) for t in tangents]
    errors = [float((cap * t - y_BHTT).square().sum()) for cap, t in starts]
    nearest = min(range(len(errors)), key=errors.__getitem__)
    cap, bend = starts[nearest][0], float(bends[nearest])
    for _ in range(_STEPS):
        t_BHTT = (bend * s_BHTT).tanh()
        if cap > 0 < bend and fits(cap * relative(t_BHTT)):
            return cap * bend, cap
        columns = torch.stack([relative(t_BHTT), relative(cap * s_BHTT * (1 - t_BHTT.square()))], -1).flatten(0, -2)
        off = (y_BHTT - cap * relative(t_BHTT)).flatten()
        step = torch.linalg.lstsq(columns, off[:, None]).solution[:, 0]
        cap, bend = cap + float(step[0]), bend + float(step[1])
    return None
