"""A learned number for every head and bucket of distances, added to the scores.

Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer" (arXiv:1910.10683),
section 2.1; buckets as in the released code.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from posexport.base.options.check import Size
from posexport.encodings.buckets import boundaries, bucket
from posexport.encodings.encoding import Array, Encoding, Term, register
from posexport.encodings.positions import Positions, distances
from posexport.errors import PosexportError
from posexport.graph.ops.biases import edges
from posexport.graph.ops.distance_scores import DISTANCE_SCORES


def oracle(
    q_BHTD: Array,
    k_BHSD: Array,
    qpos_BT: Array,
    kpos_BS: Array,
    *,
    params: Mapping[str, Array],
    heads: int,
    buckets: int = 32,
    max_distance: int = 128,
    bidirectional: bool = True,
) -> Array:
    """The formula of section 2.1 and its code, pair by pair: near distances as they are, logarithms of the others."""
    out = np.zeros((1, heads, q_BHTD.shape[2], k_BHSD.shape[2]))
    side = buckets // 2 if bidirectional else buckets
    near = side // 2
    for i, j in np.ndindex(out.shape[2:]):
        back = int(qpos_BT[0, i] - kpos_BS[0, j])
        n = abs(back) if bidirectional else max(back, 0)
        if n < near:
            table_row = n
        else:
            # to the next whole number where a logarithm misses it by its rounding
            far = math.log(n / near) / math.log(max_distance / near) * (side - near)
            table_row = min(near + math.floor(far + 1e-9), side - 1)
        out[0, :, i, j] = params["table"][table_row + (side if bidirectional and back < 0 else 0)]
    return out


@register(
    "t5",
    cases=[
        {"heads": 5},
        {"heads": 3, "buckets": 14, "max_distance": 51},
        {"heads": 12, "buckets": 32, "max_distance": 128, "bidirectional": False},
        {"heads": 2, "buckets": 7, "max_distance": 400, "bidirectional": False},
        {"heads": 2, "buckets": 4, "max_distance": 2},
    ],
    source="Raffel et al. 2020, arXiv:1910.10683, section 2.1",
    scores=oracle,
)
class T5(Encoding):
    """Adds ``table[bucket(i - j), head]`` to the scores, not scaled; one table for all layers; takes any length.

    ``table`` is [buckets, heads]. ``bidirectional``: the second half of the buckets is for keys after the query (an
    encoder); otherwise these share the bucket of distance 0 (a decoder, which masks them). Distances from
    ``max_distance`` on share the last bucket. Not done: T5 leaves out attention's 1/sqrt(d), which is the definition's
    business.
    """

    def __init__(self, *, heads: Size, buckets: int = 32, max_distance: Size = 128, bidirectional: bool = True) -> None:
        super().__init__(heads=heads, buckets=buckets, max_distance=max_distance, bidirectional=bidirectional)
        least = 4 if bidirectional else 2
        if buckets < least:
            raise PosexportError(f"{self.name}: buckets must be a whole number from {least} on, got {buckets}")
        if bidirectional and buckets % 2:
            raise PosexportError(f"{self.name}: buckets must be even where bidirectional, got {buckets}")
        side = buckets // 2 if bidirectional else buckets
        if max_distance <= side // 2:
            raise PosexportError(
                f"{self.name}: max_distance must be above {side // 2}, the distances with a bucket each, "
                f"got {max_distance}"
            )
        self.bidirectional = bidirectional
        self.max_distance = max_distance
        self.edges = edges(side, max_distance)
        self.table = self._drawn(buckets, heads)

    @property
    def boundaries(self) -> list[int]:
        """The longest inputs without a wide bucket, without the second of these, the last, and ``max_distance``."""
        return sorted(boundaries(self.edges, self.max_distance))

    def scores(self, q_BHTD: Tensor, k_BHSD: Tensor, queries: Positions, keys: Positions) -> Term:
        """The table's row of every distance."""
        return bucketed(self.table, self.edges, q_BHTD, queries, keys, bidirectional=self.bidirectional)


def bucketed(
    table: Tensor, bounds: Sequence[int], q_BHTD: Tensor, queries: Positions, keys: Positions, *, bidirectional: bool
) -> Term:
    """The row of ``table`` [buckets, heads] of every distance; ``bounds``: where buckets end (`buckets.edges`)."""
    lowest_1, distance_W = distances(queries, keys)
    rows_W = bucket(distance_W, bounds, bidirectional=bidirectional)
    by_distance_HW = F.embedding(rows_W, table).mT.to(q_BHTD.dtype)
    return Term(DISTANCE_SCORES, (by_distance_HW, lowest_1), queries, keys)
