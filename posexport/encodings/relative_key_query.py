"""A learned vector for every distance, met by the queries and by the keys.

Huang et al., "Improve Transformer Models with Better Relative Position Embeddings" (arXiv:2009.13658), method 4, as
released in transformers up to 4.57 (``position_embedding_type="relative_key_query"``).
"""

from torch import Tensor

from posexport.encodings.encoding import Term, oracle_of, register
from posexport.encodings.positions import Positions
from posexport.encodings.tables import RelativeTable
from posexport.graph.ops.relative_key_query_scores import RELATIVE_KEY_QUERY_SCORES


@register(
    "relative-key-query",
    cases=[
        {"max_positions": 300, "head_size": 4},
        {"max_positions": 257, "head_size": 7},
        {"max_positions": 13, "head_size": 4, "beyond": "clip"},
    ],
    source="Huang et al. 2020, arXiv:2009.13658, method 4",
    scores=oracle_of(RELATIVE_KEY_QUERY_SCORES, "table"),
)
class RelativeKeyQuery(RelativeTable):
    """Adds ``q_i . E[i - j] + k_j . E[i - j]`` to the scores; one table a layer.

    ``table`` is [2 max_positions - 1, head_size], from distance ``1 - max_positions`` up. ``beyond``: distances
    outside it are an ``error`` (the length is limited) or clipped to its last (``clip``).
    """

    def scores(self, q_BHTD: Tensor, k_BHSD: Tensor, queries: Positions, keys: Positions) -> Term:
        """Returns the term ``(q_i + k_j) . E[i - j]``."""
        return Term(RELATIVE_KEY_QUERY_SCORES, (self.table,), queries, keys)
