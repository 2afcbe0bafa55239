"""A weight of every word of the vocabulary for a whole text, most of them 0.

Formal, Piwowarski, Clinchant, "SPLADE" (arXiv:2107.05720), section 3; the maximum over tokens: "SPLADE v2"
(arXiv:2109.10086), section 3.1.

Shape letters: B batch, T tokens, C channels, V words.
"""

from dataclasses import dataclass

from torch import Tensor, nn

from posexport.nn.heads import Head
from posexport.spec import BATCH, OutputSpec


@dataclass(frozen=True, kw_only=True)
class SpladeConfig:
    """``summed``: a sum over tokens instead of the maximum; ``twice``: the logarithm is applied twice."""

    summed: bool = False
    twice: bool = False


class Splade(Head):
    """``log(1 + relu(logits))`` of the tokens that the mask keeps, and its maximum or sum over them."""

    def __init__(self, inner: nn.Module, vocab: int, config: SpladeConfig) -> None:
        """``inner``: the head that gives logits over the vocabulary at every token."""
        super().__init__()
        self.inner = inner
        self.config = config
        self.outputs = [OutputSpec(name="sentence_embedding", axes=[BATCH, vocab])]

    def forward(self, x_BTC: Tensor, mask_BT: Tensor | None) -> tuple[Tensor, ...]:
        logits_BTV = self.inner(x_BTC, mask_BT)[0]
        if mask_BT is not None:
            logits_BTV = logits_BTV * (mask_BT != 0)[:, :, None].to(logits_BTV.dtype)
        weights_BTV = logits_BTV.relu().log1p()
        if self.config.twice:
            weights_BTV = weights_BTV.log1p()
        return (weights_BTV.sum(1) if self.config.summed else weights_BTV.amax(1),)
