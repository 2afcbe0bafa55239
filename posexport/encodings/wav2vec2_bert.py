"""A learned vector for every distance, clipped at different distances to the left and to the right, for the queries.

Shaw et al. (arXiv:1803.02155), equation 4, as released in transformers' Wav2Vec2-BERT
(``position_embeddings_type="relative_key"``), the encoder of Seamless Communication, "Seamless: Multilingual Expressive
and Streaming Speech Translation" (arXiv:2312.05187): far to the left, little to the right.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from posexport.base.options.check import Count, Size
from posexport.encodings.encoding import Array, Encoding, Term, register
from posexport.encodings.positions import Positions
from posexport.graph.ops.clipped_scores import CLIPPED_SCORES


def oracle(
    q_BHTD: Array,
    k_BHSD: Array,
    qpos_BT: Array,
    kpos_BS: Array,
    *,
    params: Mapping[str, Array],
    left: int = 64,
    right: int = 8,
    head_size: int,
) -> Array:
    """The released formula: the table gathered at clamp(j - i, -left, right) + left, then einsum("bhld,blrd->bhlr")."""
    assert params["table"].shape == (left + right + 1, head_size)
    clipped_BTS = np.clip(kpos_BS[:, None, :] - qpos_BT[:, :, None], -left, right)
    gathered_BTSD = params["table"][clipped_BTS + left]
    gathered_BTSD = np.broadcast_to(gathered_BTSD, (len(k_BHSD), *gathered_BTSD.shape[1:]))
    scores_BHTS: Array = np.einsum("bhld,blrd->bhlr", q_BHTD, gathered_BTSD)
    return scores_BHTS


@register(
    "wav2vec2-bert",
    cases=[
        {"head_size": 4},
        {"head_size": 7, "left": 2, "right": 11},
        {"head_size": 5, "left": 5, "right": 0},
        {"head_size": 5, "left": 0, "right": 0},
        {"head_size": 4, "left": 3, "right": 270},
    ],
    source="Seamless Communication et al. 2023, arXiv:2312.05187; Shaw et al. 2018, arXiv:1803.02155, equation 4",
    scores=oracle,
)
class Wav2Vec2Bert(Encoding):
    """Adds ``q_i . a[clip(j - i, -left, right)]`` to the scores; one table a layer, shared by its heads; any length.

    ``table`` is [left + right + 1, head_size], from distance (key minus query) ``-left`` up.
    """

    per_layer = True

    def __init__(self, *, left: Count = 64, right: Count = 8, head_size: Size) -> None:
        super().__init__(left=left, right=right, head_size=head_size)
        self.left = left
        self.right = right
        self.table = self._drawn(left + right + 1, head_size)

    @property
    def boundaries(self) -> list[int]:
        """The longest inputs without a clipped distance to the left, and to the right."""
        return sorted({self.left + 1, self.right + 1})

    def scores(self, q_BHTD: Tensor, k_BHSD: Tensor, queries: Positions, keys: Positions) -> Term:
        """``q_i . a[clip(j - i, -left, right)]``."""
        # the operator clips both sides at one distance: the nearer side's last row is repeated for the rows it lacks
        clip = max(self.left, self.right)
        rows = [min(max(distance, -self.left), self.right) + self.left for distance in range(-clip, clip + 1)]
        table = self.table[torch.tensor(rows, device=self.table.device)]
        return Term(CLIPPED_SCORES, (table,), queries, keys)
