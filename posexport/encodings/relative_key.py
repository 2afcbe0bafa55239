"""A learned vector for every distance, met by the queries.

Huang et al., "Improve Transformer Models with Better Relative Position Embeddings" (arXiv:2009.13658), method 4's
first term, as released in transformers up to 4.57 (``position_embedding_type="relative_key"``).
"""

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from posexport.encodings.encoding import Array, Term, register
from posexport.encodings.positions import Positions
from posexport.encodings.relative_table import RelativeTable
from posexport.ops.relative_key_scores import RELATIVE_KEY_SCORES


def oracle(
    q_BHTD: Array,
    k_BHSD: Array,
    qpos_BT: Array,
    kpos_BS: Array,
    *,
    params: Mapping[str, Array],
    max_positions: int,
    head_size: int,
    beyond: str = "error",
) -> Array:
    """The released formula: the table gathered for every pair of positions, then einsum("bhld,blrd->bhlr")."""
    assert params["table"].shape == (2 * max_positions - 1, head_size)
    index_BTS = qpos_BT[:, :, None] - kpos_BS[:, None, :] + max_positions - 1
    if beyond == "clip":
        index_BTS = np.clip(index_BTS, 0, 2 * max_positions - 2)
    assert index_BTS.min() >= 0
    gathered_BTSD = np.broadcast_to(params["table"][index_BTS], (len(q_BHTD), *index_BTS.shape[1:], head_size))
    scores_BHTS: Array = np.einsum("bhld,blrd->bhlr", q_BHTD, gathered_BTSD)
    assert scores_BHTS.shape[-1] == k_BHSD.shape[2]
    return scores_BHTS


@register(
    "relative-key",
    cases=[
        {"max_positions": 300, "head_size": 4},
        {"max_positions": 257, "head_size": 7},
        {"max_positions": 13, "head_size": 4, "beyond": "clip"},
    ],
    source="Huang et al. 2020, arXiv:2009.13658, method 4 (queries only)",
    scores=oracle,
)
class RelativeKey(RelativeTable):
    """Adds ``q_i . E[i - j]`` to the scores; one table a layer.

    ``table`` is [2 max_positions - 1, head_size], from distance ``1 - max_positions`` up. ``beyond``: distances
    outside it are an ``error`` (the length is limited) or taken as its last (``clip``).
    """

    def scores(self, q_BHTD: Tensor, k_BHSD: Tensor, queries: Positions, keys: Positions) -> Term:
        """``q_i . E[i - j]``."""
        return Term(RELATIVE_KEY_SCORES, (self.table,), queries, keys)
