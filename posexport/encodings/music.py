"""A learned vector for every head and distance to an earlier key, met by the queries.

Huang et al., "Music Transformer" (arXiv:1809.04281), section 3.4: the relative logits are the skewed Q E^T, E one
table a head. Where the paper moves a whole matrix [T, L], a block of queries against a window of the table is moved.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from posexport.base.options.check import Size
from posexport.encodings.encoding import Array, Term, register
from posexport.encodings.positions import Positions, distances
from posexport.encodings.tables import Clippable, OnOverflow
from posexport.graph.ops.head_distance_scores import HEAD_DISTANCE_SCORES


def oracle(
    q_BHTD: Array,
    k_BHSD: Array,
    qpos_BT: Array,
    kpos_BS: Array,
    *,
    params: Mapping[str, Array],
    heads: int,
    head_size: int,
    max_positions: int,
    beyond: str = "error",
) -> Array:
    """Section 3.4: q . E_r, r = j - i from 1 - L to 0; row L - 1 of a head's table is r = 0, which later keys share."""
    assert params["table"].shape == (heads, max_positions, head_size)
    out = np.zeros((*q_BHTD.shape[:3], k_BHSD.shape[2]))
    for i, j in np.ndindex(out.shape[2:]):
        r = min(int(kpos_BS[0, j]) - int(qpos_BT[0, i]), 0)
        assert beyond == "clip" or r > -max_positions
        vector_HD = params["table"][:, max_positions - 1 + max(r, 1 - max_positions)]
        out[:, :, i, j] = np.einsum("bhd,hd->bh", q_BHTD[:, :, i], vector_HD)
    return out


@register(
    "music",
    cases=[
        {"heads": 5, "head_size": 4, "max_positions": 300},
        {"heads": 5, "head_size": 7, "max_positions": 13, "beyond": "clip"},
    ],
    source="Huang et al. 2018, arXiv:1809.04281, section 3.4",
    scores=oracle,
)
class Music(Clippable):
    """Adds ``q_i . E[h, j - i]`` to the scores of earlier keys; one table a layer and head; for decoders.

    ``table`` is [heads, max_positions, head_size], the farthest distance first. ``beyond``: longer distances are an
    ``error`` (the length is limited) or clipped to the farthest (``clip``). Keys after the query share the row of
    distance 0, and are masked by the decoder.
    """

    causal = True

    def __init__(self, *, heads: Size, head_size: Size, max_positions: int = 512, beyond: OnOverflow = "error") -> None:
        super().__init__(max_positions=max_positions, beyond=beyond, heads=heads, head_size=head_size)
        self.table = self._drawn(heads, max_positions, head_size)

    def scores(self, q_BHTD: Tensor, k_BHSD: Tensor, queries: Positions, keys: Positions) -> Term:
        """``q_i . E[h, j - i]``: the operator of Transformer-XL without its bias."""
        lowest_1, distance_W = distances(queries, keys)
        row_W = (self.max_positions - 1 - distance_W).clamp(0, self.max_positions - 1)
        by_distance_HWD = self.table[:, row_W]
        none_HD = torch.zeros_like(self.table[:, 0])
        return Term(HEAD_DISTANCE_SCORES, (by_distance_HWD, none_HD, lowest_1), queries, keys)
