"""Attention to near tokens only: the scores of all others are lowered out of reach.

Beltagy, Peters, Cohan, "Longformer" (arXiv:2004.05150), section 3.1, sliding window; ModernBERT's local layers are the
same. Not done: dilation, global tokens (the model's business), and leaving out the products beyond the window.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from posexport.base.options.check import Count
from posexport.encodings.encoding import Array, Encoding, Term, register
from posexport.encodings.positions import Positions, distances
from posexport.graph.ops.distance_scores import DISTANCE_SCORES

#: Bias beyond the window. Exact in every precision; far enough below any score that the softmax gives exact
#: zeros. Not the dtype's lowest number: added to a padding mask, which is, that would be minus infinity, and a row in
#: which all is minus infinity is NaN. In float32 this one changes no padded score at all; in float16 a score that is
#: both padded and outside becomes minus infinity, but the query's token itself, which is never outside, stays finite.
BEYOND = -(2.0**15)


def oracle(
    q_BHTD: Array,
    k_BHSD: Array,
    qpos_BT: Array,
    kpos_BS: Array,
    *,
    params: Mapping[str, Array],
    left: int,
    right: int,
) -> Array:
    """Query by query: a slice of zeros among values that no score outweighs."""
    assert not params
    out = np.full((1, 1, q_BHTD.shape[2], k_BHSD.shape[2]), -32768.0)
    start = int(kpos_BS[0, 0])
    for row, i in enumerate(qpos_BT[0]):
        out[0, 0, row, max(0, int(i) - left - start) : max(0, int(i) + right + 1 - start)] = 0
    return out


@register(
    "local-window",
    cases=[
        {"left": 8, "right": 8},
        {"left": 5, "right": 0},
        {"left": 0, "right": 3},
        {"left": 12, "right": 40},
    ],
    source="Beltagy et al. 2020, arXiv:2004.05150, section 3.1",
    scores=oracle,
)
class LocalWindow(Encoding):
    """Lowers the scores of keys more than ``left`` before or ``right`` after the query; takes any length.

    Inside the window nothing is added, so that a window alone tells no order there. The same for all heads.
    """

    def __init__(self, *, left: Count = 8, right: Count = 8) -> None:
        super().__init__(left=left, right=right)
        self.left = left
        self.right = right

    @property
    def boundaries(self) -> list[int]:
        """The longest inputs with no key too far to the left, and none too far to the right."""
        return sorted({self.left + 1, self.right + 1})

    def scores(self, q_BHTD: Tensor, k_BHSD: Tensor, queries: Positions, keys: Positions) -> Term:
        """0 inside the window, `BEYOND` outside."""
        lowest_1, distance_W = distances(queries, keys)
        inside_W = (distance_W <= self.left) & (distance_W >= -self.right)
        zero, beyond = (torch.tensor(x, dtype=q_BHTD.dtype, device=q_BHTD.device) for x in (0.0, BEYOND))
        return Term(DISTANCE_SCORES, (torch.where(inside_W, zero, beyond)[None], lowest_1), queries, keys)
