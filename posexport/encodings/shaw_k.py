"""A learned vector for every clipped distance, met by the queries.

Shaw, Uszkoreit, Vaswani, "Self-Attention with Relative Position Representations" (arXiv:1803.02155), equation 4 and
section 3.2, without the values' term (their table 3: it made no difference for translation).
"""

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from posexport.encodings.encoding import Array, Encoding, Term, register
from posexport.encodings.positions import Positions
from posexport.ops.clipped_scores import CLIPPED_SCORES


def oracle(
    q_BHTD: Array,
    k_BHSD: Array,
    qpos_BT: Array,
    kpos_BS: Array,
    *,
    params: Mapping[str, Array],
    clip: int = 16,
    head_size: int,
) -> Array:
    """Equation 4's second term, row by row of the table: q_i . w_r wherever clip(j - i, k) is the row's distance r."""
    assert params["key_table"].shape == (2 * clip + 1, head_size)
    distance_B1TS = np.minimum(clip, np.maximum(-clip, kpos_BS[:, None, None, :] - qpos_BT[:, None, :, None]))
    out = np.zeros((*q_BHTD.shape[:3], k_BHSD.shape[2]))
    for row, vector in enumerate(params["key_table"]):
        out += (q_BHTD * vector).sum(-1)[..., None] * (distance_B1TS == row - clip)
    return out


@register(
    "shaw-k",
    cases=[
        {"clip": 16, "head_size": 4},
        {"clip": 3, "head_size": 7},
        {"clip": 0, "head_size": 5},
        {"clip": 270, "head_size": 4},
    ],
    source="Shaw et al. 2018, arXiv:1803.02155, equation 4",
    scores=oracle,
)
class ShawK(Encoding):
    """Adds ``q_i . a[clip(j - i)]`` to the scores; one table a layer, shared by its heads; takes any length.

    ``key_table`` is [2 clip + 1, head_size], from distance (key minus query) ``-clip`` up.
    """

    per_layer = True

    def __init__(self, *, clip: int = 16, head_size: int) -> None:
        super().__init__(clip=clip, head_size=head_size)
        self._at_least(0, clip=clip)
        self._at_least(1, head_size=head_size)
        self.clip = clip
        self.key_table = self._drawn(2 * clip + 1, head_size)

    @property
    def boundaries(self) -> list[int]:
        """The longest input of which no distance is clipped."""
        return [self.clip + 1]

    def scores(self, q_BHTD: Tensor, k_BHSD: Tensor, queries: Positions, keys: Positions) -> Term:
        """``q_i . a[clip(j - i)]``."""
        return Term(CLIPPED_SCORES, (self.key_table,), queries, keys)
