"""ModernBERT's heads: every one reads its hidden states through a projection, an activation and a normalisation.

Warner et al., "Smarter, Better, Faster, Longer" (arXiv:2412.13663), as released. The encoder is
`posexport.models.encoder`.
"""

from typing import Literal

from torch import Tensor, nn

from posexport.base.spec import BATCH, OutputSpec
from posexport.nn.feed_forward import activation
from posexport.nn.heads import Head, mean_of_tokens
from posexport.nn.norms import NormConfig, normalisation


class Prediction(nn.Module):
    """A linear projection, an activation and a normalisation, of any number of axes before the last."""

    def __init__(self, norm: NormConfig, hidden: int, activation_name: str, *, bias: bool) -> None:
        super().__init__()
        self.dense = nn.Linear(hidden, hidden, bias=bias)
        self.activation = activation(activation_name)
        self.norm = normalisation(norm, hidden)

    def forward(self, x_C: Tensor) -> Tensor:
        out: Tensor = self.norm(self.activation(self.dense(x_C)))
        return out


class PredictedTokens(Head):
    """Another head, which reads every token through a `Prediction`."""

    def __init__(self, prediction: Prediction, head: Head) -> None:
        super().__init__()
        self.prediction = prediction
        self.head = head
        self.outputs = head.outputs
        self.reads_first_token = head.reads_first_token

    def forward(self, x_BTC: Tensor, mask_BT: Tensor | None) -> tuple[Tensor, ...]:
        outputs: tuple[Tensor, ...] = self.head(self.prediction(x_BTC), mask_BT)
        return outputs


class PooledClassification(Head):
    """Logits over labels from the first token or the mean over real tokens, through a `Prediction`."""

    def __init__(self, prediction: Prediction, hidden: int, labels: int, pooling: Literal["cls", "mean"]) -> None:
        super().__init__()
        self.prediction = prediction
        self.out = nn.Linear(hidden, labels)
        self.mean = pooling == "mean"
        self.reads_first_token = not self.mean
        self.outputs = [OutputSpec(name="logits", axes=[BATCH, labels])]

    def forward(self, x_BTC: Tensor, mask_BT: Tensor | None) -> tuple[Tensor, ...]:
        pooled_BC = mean_of_tokens(x_BTC, mask_BT, least=1) if self.mean else x_BTC[:, 0]
        return (self.out(self.prediction(pooled_BC)),)
