"""Learned vectors for every clipped distance, one met by the queries and one added to the values.

Shaw, Uszkoreit, Vaswani, "Self-Attention with Relative Position Representations" (arXiv:1803.02155), equations 3 and 4.
"""

from collections.abc import Mapping

import numpy as np

from posexport.encodings.encoding import Array, Term, register
from posexport.encodings.positions import Positions
from posexport.encodings.shaw_k import ShawK
from posexport.ops.clipped_values import CLIPPED_VALUES


def scores_oracle(
    q_BHTD: Array,
    k_BHSD: Array,
    qpos_BT: Array,
    kpos_BS: Array,
    *,
    params: Mapping[str, Array],
    clip: int = 16,
    head_size: int,
) -> Array:
    """Equation 4's second term, key by key."""
    assert params["key_table"].shape == (2 * clip + 1, head_size)
    out = np.zeros((*q_BHTD.shape[:3], k_BHSD.shape[2]))
    for j in range(k_BHSD.shape[2]):
        a_BTD = params["key_table"][np.clip(kpos_BS[:, j, None] - qpos_BT, -clip, clip) + clip]
        out[..., j] = np.einsum("bhtd,btd->bht", q_BHTD, np.broadcast_to(a_BTD, (len(q_BHTD), *a_BTD.shape[1:])))
    return out


def values_oracle(
    probs_BHTS: Array, qpos_BT: Array, kpos_BS: Array, *, params: Mapping[str, Array], clip: int = 16, head_size: int
) -> Array:
    """Equation 3's second term, row by row of the table: the probabilities of a row's distances times its vector."""
    distance_B1TS = np.minimum(clip, np.maximum(-clip, kpos_BS[:, None, None, :] - qpos_BT[:, None, :, None]))
    out = np.zeros((*probs_BHTS.shape[:3], head_size))
    for row in range(2 * clip + 1):
        share_BHT = (probs_BHTS * (distance_B1TS == row - clip)).sum(-1)
        out += share_BHT[..., None] * params["value_table"][row]
    return out


@register(
    "shaw-kv",
    cases=[
        {"clip": 16, "head_size": 4},
        {"clip": 3, "head_size": 7},
        {"clip": 0, "head_size": 5},
        {"clip": 270, "head_size": 4},
    ],
    source="Shaw et al. 2018, arXiv:1803.02155, equations 3 and 4",
    scores=scores_oracle,
    values=values_oracle,
)
class ShawKV(ShawK):
    """Adds ``q_i . a[clip(j - i)]`` to the scores and ``sum_j p_ij b[clip(j - i)]`` to the context; takes any length.

    ``key_table`` and ``value_table`` are [2 clip + 1, head_size], from distance (key minus query) ``-clip`` up; two a
    layer, shared by its heads.
    """

    def __init__(self, *, clip: int = 16, head_size: int) -> None:
        super().__init__(clip=clip, head_size=head_size)
        self.value_table = self._drawn(2 * clip + 1, head_size)

    def values(self, queries: Positions, keys: Positions) -> Term:
        """``sum_j p_ij b[clip(j - i)]``."""
        return Term(CLIPPED_VALUES, (self.value_table,), queries, keys)
