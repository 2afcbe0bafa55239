"""A text's vector, and a weight and a vector of each token, in one pass: dense, sparse and multi-vector retrieval.

Chen et al., "M3-Embedding" (arXiv:2402.03216), section 3.2, as released in FlagEmbedding.

Shape letters: B batch, T tokens, C channels.
"""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from posexport.base.spec import BATCH, SEQUENCE, OutputSpec
from posexport.nn.pooling import Mode, SentenceEmbedding, StepConfig


class HybridEmbedding(SentenceEmbedding):
    """``SentenceEmbedding`` with the weight and the vector of length 1 of every token; zero for padding.

    Which tokens count in a score is not decided here: the first token and other special ones have weights and vectors.
    """

    def __init__(
        self, hidden: int, modes: Sequence[Mode], steps: Sequence[StepConfig], *, width: int, first_kept: bool
    ) -> None:
        """``width``: elements of a token's vector."""
        super().__init__(hidden, modes, steps, first_kept=first_kept)
        self.sparse_linear = nn.Linear(hidden, 1)
        self.colbert_linear = nn.Linear(hidden, width)
        self.outputs = [
            *self.outputs,
            OutputSpec(name="sparse_vecs", axes=[BATCH, SEQUENCE, 1]),
            OutputSpec(name="colbert_vecs", axes=[BATCH, SEQUENCE, width]),
        ]

    def forward(self, x_BTC: Tensor, mask_BT: Tensor | None, prompt_BT: Tensor | None = None) -> tuple[Tensor, ...]:
        weight_BT1, vector_BTC = self.sparse_linear(x_BTC).relu(), self.colbert_linear(x_BTC)
        if mask_BT is not None:
            kept_BT1 = (mask_BT != 0).to(x_BTC.dtype)[:, :, None]
            weight_BT1, vector_BTC = weight_BT1 * kept_BT1, vector_BTC * kept_BT1
        return (*super().forward(x_BTC, mask_BT, prompt_BT), weight_BT1, F.normalize(vector_BTC, dim=-1))
