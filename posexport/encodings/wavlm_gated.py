"""T5's bias by buckets of distances, scaled by a gate per layer, head and query.

Chen et al., "WavLM" (arXiv:2110.13900), section 3.1, equations 5 to 8, as released: the gates read a head's share of
the attention's input, not its queries; each gate is the sum of four of eight outputs; the table is the first layer's.
"""

from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posexport.base.options.check import FromFour, Size
from posexport.encodings.buckets import boundaries, bucket, two_sided_edges
from posexport.encodings.encoding import Array, Encoding, Term, register
from posexport.encodings.positions import Positions, distances
from posexport.graph.ops.gated_distance_scores import GATED_DISTANCE_SCORES

#: number of linear outputs that each of the two gates sums
_SUMMED = 4


def oracle(
    q_BHTD: Array,
    k_BHSD: Array,
    qpos_BT: Array,
    kpos_BS: Array,
    *,
    params: Mapping[str, Array],
    heads: int,
    head_size: int,
    buckets: int = 320,
    max_distance: int = 800,
) -> Array:
    """Equations 5 to 8 for every pair: d + update d + (1 - update) w reset d; ``q_BHTD`` is what the gates read."""
    assert q_BHTD.shape[1::2] == (heads, head_size)
    away, towards = (params["gate.weight"][rows].sum(0) for rows in (slice(0, 4), slice(4, 8)))
    away_bias, towards_bias = (params["gate.bias"][rows].sum() for rows in (slice(0, 4), slice(4, 8)))
    update_BHT = 1 / (1 + np.exp(q_BHTD @ away + away_bias))  # the released code's first gate is one less this
    reset_BHT = 1 / (1 + np.exp(-(q_BHTD @ towards) - towards_bias))
    reset_BHT = reset_BHT * params["constant"].reshape(1, heads, 1)
    ratio, wide = max_distance / (buckets // 4), buckets // 2 - buckets // 4
    out = np.zeros((*q_BHTD.shape[:3], k_BHSD.shape[2]))
    for i, j in np.ndindex(out.shape[2:]):
        ahead = int(kpos_BS[0, j] - qpos_BT[0, i])
        table_row = abs(ahead)
        if table_row >= buckets // 4:
            step = int(np.log(table_row / (buckets // 4)) / np.log(ratio) * wide + 1e-9)
            table_row = min(buckets // 4 + step, buckets // 2 - 1)
        d_H = params["table"][table_row + (buckets // 2 if ahead > 0 else 0)]
        out[:, :, i, j] = d_H * (1 + update_BHT[:, :, i] + (1 - update_BHT[:, :, i]) * reset_BHT[:, :, i])
    return out


@register(
    "wavlm-gated",
    cases=[
        {"heads": 5, "head_size": 4},
        {"heads": 5, "head_size": 7, "buckets": 28, "max_distance": 51},
        {"heads": 5, "head_size": 3, "buckets": 4, "max_distance": 2},
    ],
    source="Chen et al. 2021, arXiv:2110.13900, section 3.1",
    scores=oracle,
)
class WavLMGated(Encoding):
    """Adds ``table[bucket(i - j), head] (2 + a (b c - 1))`` to the scores, not scaled, a and b gates of query and head.

    ``table`` is [buckets, heads], one for all layers, with T5's two-sided buckets; distances from ``max_distance`` on
    share the last. Each layer has a ``gate.weight`` [8, head_size] and ``gate.bias``, a projection of a head's
    share of the attention's input; its first four and last four outputs are summed, their sigmoids are ``a`` and
    ``b``, and ``constant`` (c), [heads]. Gates are computed in float32 or wider. Takes any length.
    """

    per_layer = True
    tied = ("table",)
    reads_input = True

    def __init__(
        self,
        *,
        heads: Size,
        head_size: Size,
        buckets: FromFour = 320,
        max_distance: Size = 800,
    ) -> None:
        super().__init__(heads=heads, head_size=head_size, buckets=buckets, max_distance=max_distance)
        self.max_distance = max_distance
        self.edges = two_sided_edges(self.name, buckets, max_distance)
        self.table = self._drawn(buckets, heads)
        self.gate = nn.Linear(head_size, 2 * _SUMMED)
        self.constant = nn.Parameter(torch.ones(heads))

    @property
    def boundaries(self) -> list[int]:
        """The longest inputs without a wide bucket, without the second of these, the last, and ``max_distance``."""
        return sorted(boundaries(self.edges, self.max_distance))

    def scores(self, q_BHTD: Tensor, k_BHSD: Tensor, queries: Positions, keys: Positions) -> Term:
        """The table's row of every distance, and the gate of every query; ``q_BHTD`` is the attention's input."""
        wide = torch.promote_types(q_BHTD.dtype, torch.float32)
        read_BHT8 = F.linear(q_BHTD.to(wide), self.gate.weight.to(wide), self.gate.bias.to(wide))
        gates: Tensor = read_BHT8.unflatten(-1, (2, _SUMMED))  # type: ignore[no-untyped-call]
        a_BHT, b_BHT = gates.sum(-1).sigmoid().unbind(-1)
        gate_BHT = a_BHT * (b_BHT * self.constant.to(wide)[:, None] - 1) + 2
        lowest_1, distance_W = distances(queries, keys)
        by_distance_HW = F.embedding(bucket(distance_W, self.edges, bidirectional=True), self.table).mT
        tensors = (by_distance_HW.to(q_BHTD.dtype), gate_BHT.to(q_BHTD.dtype), lowest_1, queries.slots_T[:1])
        return Term(GATED_DISTANCE_SCORES, tensors, queries, keys)
