"""A learned vector for every clipped distance, met by the queries.

Shaw, Uszkoreit, Vaswani, "Self-Attention with Relative Position Representations" (arXiv:1803.02155), equation 4 and
section 3.2, without the values' term (their table 3: it made no difference for translation).
"""

from torch import Tensor

from posexport.base.options.check import Count, Size
from posexport.encodings.encoding import Encoding, Term, oracle_of, register
from posexport.encodings.positions import Positions
from posexport.graph.ops.clipped_scores import CLIPPED_SCORES


@register(
    "shaw-k",
    cases=[
        {"clip": 16, "head_size": 4},
        {"clip": 3, "head_size": 7},
        {"clip": 0, "head_size": 5},
        {"clip": 270, "head_size": 4},
    ],
    source="Shaw et al. 2018, arXiv:1803.02155, equation 4",
    scores=oracle_of(CLIPPED_SCORES, "key_table"),
)
class ShawK(Encoding):
    """Adds ``q_i . a[clip(j - i)]`` to the scores; one table a layer, shared by its heads; takes any length.

    ``key_table`` is [2 clip + 1, head_size], from distance (key minus query) ``-clip`` up.
    """

    per_layer = True

    def __init__(self, *, clip: Count = 16, head_size: Size) -> None:
        super().__init__(clip=clip, head_size=head_size)
        self.clip = clip
        self.key_table = self._drawn(2 * clip + 1, head_size)

    @property
    def boundaries(self) -> list[int]:
        """The longest input without a clipped distance."""
        return [self.clip + 1]

    def scores(self, q_BHTD: Tensor, k_BHSD: Tensor, queries: Positions, keys: Positions) -> Term:
        """Returns the term ``q_i . a[clip(j - i)]``."""
        return Term(CLIPPED_SCORES, (self.key_table,), queries, keys)
