"""Learned vectors for every clipped distance, one met by the queries and one added to the values.

Shaw, Uszkoreit, Vaswani, "Self-Attention with Relative Position Representations" (arXiv:1803.02155), equations 3 and 4.
"""

from posexport.encodings.encoding import Term, oracle_of, register
from posexport.encodings.positions import Positions
from posexport.encodings.shaw_k import ShawK
from posexport.graph.ops.clipped_scores import CLIPPED_SCORES
from posexport.graph.ops.clipped_values import CLIPPED_VALUES


@register(
    "shaw-kv",
    cases=[
        {"clip": 16, "head_size": 4},
        {"clip": 3, "head_size": 7},
        {"clip": 0, "head_size": 5},
        {"clip": 270, "head_size": 4},
    ],
    source="Shaw et al. 2018, arXiv:1803.02155, equations 3 and 4",
    scores=oracle_of(CLIPPED_SCORES, "key_table"),
    values=oracle_of(CLIPPED_VALUES, "value_table"),
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
