"""A learned vector for every position, added to the token embeddings, and T5's bias by distance.

Song et al., "MPNet: Masked and Permuted Pre-training for Language Understanding" (arXiv:2004.09297), section 3.1
("Experimental Setup": relative positional bias as in T5), as in the released code, which keeps the absolute table too.
Not done: the permuted order and the two streams of pre-training, which inference does not have.
"""

import math
from collections.abc import Mapping

import numpy as np
from torch import Tensor, nn

from posexport.base.options.check import FromFour, Size
from posexport.encodings.buckets import boundaries, bucket, two_sided_edges
from posexport.encodings.encoding import Array, Encoding, Term, register
from posexport.encodings.positions import Positions, distances
from posexport.encodings.tables import Joined, PositionTable
from posexport.graph.ops.distance_scores import DISTANCE_SCORES


def embed_oracle(
    x_BTC: Array, pos_BT: Array, *, params: Mapping[str, Array], max_positions: int, hidden: int, **unused: object
) -> Array:
    """One-hot vectors meet the table: x + onehot(position) E."""
    del unused
    onehot_BTM = np.equal(pos_BT[..., None], np.arange(max_positions)).astype(np.float64)
    summed: Array = x_BTC + (onehot_BTM @ params["table"]).reshape(*pos_BT.shape, hidden)
    return summed


def scores_oracle(
    q_BHTD: Array,
    k_BHSD: Array,
    qpos_BT: Array,
    kpos_BS: Array,
    *,
    params: Mapping[str, Array],
    heads: int,
    max_positions: int,
    hidden: int,
    buckets: int = 32,
    max_distance: int = 128,
) -> Array:
    """Distance by distance: buckets of one up to a quarter of their count, then by the logarithm; later keys apart."""
    assert params["table"].shape == (max_positions, hidden)
    distance_TS = qpos_BT[0][:, None] - kpos_BS[0][None, :]
    out = np.zeros((1, heads, q_BHTD.shape[2], k_BHSD.shape[2]))
    half, quarter = buckets // 2, buckets // 2 // 2
    for distance in np.unique(distance_TS):
        table_row = far = abs(int(distance))
        if far >= quarter:
            # a hair above, so that logarithms that are whole numbers are not rounded down
            steps = (half - quarter) * math.log(far / quarter, max_distance / quarter)
            table_row = min(half - 1, quarter + int(steps + 1e-9))
        out += params["bias.weight"][table_row + half * (distance < 0)][None, :, None, None] * (distance_TS == distance)
    return out


@register(
    "mpnet",
    cases=[
        {"max_positions": 2053, "hidden": 20, "heads": 5},
        {"max_positions": 300, "hidden": 7, "heads": 3, "buckets": 14, "max_distance": 51},
    ],
    source="Song et al. 2020, arXiv:2004.09297, released code",
    embed=embed_oracle,
    scores=scores_oracle,
)
class Mpnet(PositionTable):
    """Adds a learned vector per position to the embeddings, and ``bias[bucket(i - j), head]`` to the scores.

    ``table`` is [max_positions, hidden], and ends the input; ``bias.weight`` is [buckets, heads], one for all layers,
    not scaled, with T5's two-sided buckets up to ``max_distance``. ``trained``: how many positions the table was
    trained for, where it has been stretched to ``max_positions`` since; the bias takes any distance as it is.
    """

    def __init__(
        self,
        *,
        max_positions: int = 512,
        hidden: int,
        heads: Size,
        buckets: FromFour = 32,
        max_distance: Size = 128,
        joined: Joined = "sum",
        trained: int | None = None,
    ) -> None:
        super().__init__(
            max_positions=max_positions,
            hidden=hidden,
            joined=joined,
            trained=trained,
            heads=heads,
            buckets=buckets,
            max_distance=max_distance,
        )
        self.max_distance = max_distance
        self.edges = two_sided_edges(self.name, buckets, max_distance)
        # not an `Encoding`: `--beyond` changes every encoding in a model
        self.bias = nn.Embedding(buckets, heads)
        self.bias.weight = self._drawn(buckets, heads)

    @property
    def boundaries(self) -> list[int]:
        """The table's end and, below it, the longest inputs without a wide bucket, without the second, the last."""
        of_bias = boundaries(self.edges, self.max_distance)
        return sorted({*super().boundaries, *(length for length in of_bias if length < self.limit)})

    def interpolated(self, length: int, *, overhead: int = 0) -> Encoding:
        """The table stretched (see `PositionTable.interpolated`), the bias as it is."""
        stretched = super().interpolated(length, overhead=overhead)
        assert isinstance(stretched, Mpnet)
        stretched.bias = self.bias
        return stretched

    def scores(self, q_BHTD: Tensor, k_BHSD: Tensor, queries: Positions, keys: Positions) -> Term:
        lowest_1, distance_W = distances(queries, keys)
        by_distance_HW = self.bias(bucket(distance_W, self.edges, bidirectional=True)).mT.to(q_BHTD.dtype)
        return Term(DISTANCE_SCORES, (by_distance_HW, lowest_1), queries, keys)
