"""Scores that are kept below a cap by a hyperbolic tangent, as in Gemma 2: scale and cap, of what a softmax shows.

Gemma team, "Gemma 2" (arXiv:2408.00118), section 2, "logit soft-capping". Shape letters: B batch, H heads, T tokens.
"""

import torch
from torch import Tensor

#: how far the largest score may be within or beyond the bend of the tangent, as powers of ten, and how many are tried
_LEAST, _MOST, _TRIED = -3, 2, 101
#: steps from there on, each of which doubles the digits
_STEPS = 30
#: queries whose scores are looked at
_QUERIES = 16


def fitted(s_BHTT: Tensor, y_BHTT: Tensor, best_BHT1: Tensor, most: float) -> tuple[float, float] | None:
    """``scale`` and ``cap`` with which ``cap tanh(scale s / cap)``, relative to that of the best key, is ``y``.

    None where no such are; ``most``: what ``y`` may be off. What is masked is 0 in ``y`` and does not count. Least
    squares by Gauss and Newton, from the nearest of some.
    """
    queries = torch.linspace(0, s_BHTT.shape[2] - 1, min(_QUERIES, s_BHTT.shape[2])).long()
    s, y, best = (x[:, :, queries] for x in (s_BHTT, y_BHTT, best_BHT1))
    counts = y != 0

    def relative(x: Tensor) -> Tensor:
        return (x - x.gather(-1, best))[counts]

    y = y[counts]
    bends = torch.logspace(_LEAST, _MOST, _TRIED, dtype=torch.float64) / s.abs().max()
    caps, errors = zip(*(_cap_and_error(relative((bend * s).tanh()), y) for bend in bends), strict=True)
    nearest = min(range(_TRIED), key=errors.__getitem__)
    cap, bend = caps[nearest], float(bends[nearest])
    for _ in range(_STEPS):
        tangent = (bend * s).tanh()
        off = y - cap * relative(tangent)
        if cap > 0 < bend and float(off.abs().max()) <= most:
            return cap * bend, cap
        columns = torch.stack([relative(tangent), relative(cap * s * (1 - tangent.square()))], -1)
        step = torch.linalg.lstsq(columns, off[:, None]).solution[:, 0]
        cap, bend = cap + float(step[0]), bend + float(step[1])
    return None


def _cap_and_error(tangent: Tensor, y: Tensor) -> tuple[float, float]:
    cap = float((tangent * y).sum() / (tangent * tangent).sum().clamp(min=1e-300))
    return cap, float((cap * tangent - y).square().sum())
