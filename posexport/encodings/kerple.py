"""A penalty that grows as a logarithm or a power of the distance, with two learned parameters per head.

Chi, Fan, Ramadge, Rudnicky, "KERPLE: Kernelized Relative Positional Embedding for Length Extrapolation"
(arXiv:2205.09921), equations 2 and 3, as released: the parameters are shared by all layers and kept positive by
clamping, from 0.01 on, the exponent up to 2.
"""

from collections.abc import Mapping
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from posexport.base.options.check import Size
from posexport.encodings.encoding import Array, Encoding, Term, register
from posexport.encodings.positions import Positions, distances
from posexport.graph.ops.distance_scores import DISTANCE_SCORES

Form = Literal["log", "power"]
#: what the released code clamps to
LEAST = 0.01
GREATEST_POWER = 2.0


def oracle(
    q_BHTD: Array,
    k_BHSD: Array,
    qpos_BT: Array,
    kpos_BS: Array,
    *,
    params: Mapping[str, Array],
    heads: int,
    form: str = "log",
) -> Array:
    """Head by head: -r1 log(1 + r2 |m - n|), or -r1 |m - n|^r2 with r2 at most 2."""
    gap_TS = np.abs(np.subtract.outer(qpos_BT[0], kpos_BS[0])).astype(np.float64)
    out = np.zeros((1, heads, q_BHTD.shape[2], k_BHSD.shape[2]))
    for head in range(heads):
        r1, r2 = (max(params[name][head], 0.01) for name in ("r1", "r2"))
        if form == "log":
            out[0, head] = -r1 * np.log1p(r2 * gap_TS)
        else:
            out[0, head] = -r1 * np.float_power(gap_TS, min(r2, 2.0))
    return out


@register(
    "kerple",
    cases=[{"heads": 11}, {"heads": 7, "form": "power"}, {"heads": 12, "form": "power"}],
    source="Chi et al. 2022, arXiv:2205.09921, equations 2 and 3",
    scores=oracle,
)
class Kerple(Encoding):
    """Adds ``-r1 log(1 + r2 |i - j|)``, or ``-r1 |i - j|^r2``, to the scores, not scaled; takes any length.

    ``r1`` and ``r2`` are [heads]; values below 0.01 count as 0.01, exponents above 2 as 2. ``form``: ``log`` or
    ``power``. The paper's distance is causal; here it is the same to both sides. Not done: the paper's
    weight kernels, which multiply the scores.
    """

    def __init__(self, *, heads: Size, form: Form = "log") -> None:
        super().__init__(heads=heads, form=form)
        self.form = form
        # as released: uniform, r1 of the logarithm and the exponent up to 2, the others up to 1
        most = (2.0, 1.0) if form == "log" else (1.0, 2.0)
        self.r1, self.r2 = (nn.Parameter(torch.rand(heads) * upto) for upto in most)

    def scores(self, q_BHTD: Tensor, k_BHSD: Tensor, queries: Positions, keys: Positions) -> Term:
        """The penalty of every distance, in float32 or wider until the cast."""
        wide = torch.promote_types(q_BHTD.dtype, torch.float32)
        lowest_1, distance_W = distances(queries, keys)
        gap_W = distance_W.abs().to(wide)
        r1_H1, r2_H1 = (r[:, None].to(wide).clamp(min=LEAST) for r in (self.r1, self.r2))
        power_H1 = r2_H1.clamp(max=GREATEST_POWER)
        grown_HW = torch.log(1 + r2_H1 * gap_W) if self.form == "log" else gap_W**power_H1
        return Term(DISTANCE_SCORES, ((-r1_H1 * grown_HW).to(q_BHTD.dtype), lowest_1), queries, keys)
