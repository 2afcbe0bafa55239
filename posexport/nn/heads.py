"""Heads on an encoder: one class per task, with the outputs that it returns."""

from collections.abc import Callable

from torch import Tensor, nn

from posexport.base.spec import BATCH, SEQUENCE, OutputSpec
from posexport.nn.feed_forward import activation


class Head(nn.Module):
    """Hidden states [B, T, C] and the mask [B, T] (or None) to a tuple of outputs."""

    outputs: list[OutputSpec]
    #: the answer is read at token 0, so a left-padded row is answered at a padded token
    reads_first_token: bool = False


class Features(Head):
    """A head that returns the hidden states."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.outputs = [OutputSpec(name="last_hidden_state", axes=[BATCH, SEQUENCE, hidden])]

    def forward(self, x_BTC: Tensor, mask_BT: Tensor | None) -> tuple[Tensor, ...]:
        return (x_BTC,)


class PooledFeatures(Features):
    """The hidden states, and of the first token's a vector for the whole text: linear, tanh.

    Devlin et al., "BERT" (arXiv:1810.04805), released code: the "pooler", trained for next-sentence prediction.
    """

    reads_first_token = True

    def __init__(self, hidden: int) -> None:
        super().__init__(hidden)
        self.dense = nn.Linear(hidden, hidden)
        self.outputs = [*self.outputs, OutputSpec(name="pooler_output", axes=[BATCH, hidden])]

    def forward(self, x_BTC: Tensor, mask_BT: Tensor | None) -> tuple[Tensor, ...]:
        return x_BTC, self.dense(x_BTC[:, 0]).tanh()


class FillMask(Head):
    """Logits over the vocabulary at every token: dense, activation, normalisation, then the decoder."""

    def __init__(self, hidden: int, inner: int, vocab: int, activation_name: str, eps: float) -> None:
        super().__init__()
        self.dense = nn.Linear(hidden, inner)
        self.activation = activation(activation_name)
        self.norm = nn.LayerNorm(inner, eps=eps)
        self.decoder = nn.Linear(inner, vocab)
        self.outputs = [OutputSpec(name="logits", axes=[BATCH, SEQUENCE, vocab])]

    def forward(self, x_BTC: Tensor, mask_BT: Tensor | None) -> tuple[Tensor, ...]:
        return (self.decoder(self.norm(self.activation(self.dense(x_BTC)))),)


class SequenceClassification(Head):
    """Logits over labels from the first token: dense, activation, linear."""

    reads_first_token = True

    def __init__(self, hidden: int, labels: int, activation_name: str) -> None:
        super().__init__()
        self.dense = nn.Linear(hidden, hidden)
        self.activation = activation(activation_name)
        self.out = nn.Linear(hidden, labels)
        self.outputs = [OutputSpec(name="logits", axes=[BATCH, labels])]

    def forward(self, x_BTC: Tensor, mask_BT: Tensor | None) -> tuple[Tensor, ...]:
        return (self.scores(x_BTC[:, 0]),)

    def scores(self, x_BC: Tensor) -> Tensor:
        """Logits from the vector of one token, [B, labels]."""
        logits_BL: Tensor = self.out(self.activation(self.dense(x_BC)))
        return logits_BL


class TokenClassification(Head):
    """Logits over labels at every token."""

    def __init__(self, hidden: int, labels: int) -> None:
        super().__init__()
        self.out = nn.Linear(hidden, labels)
        self.outputs = [OutputSpec(name="logits", axes=[BATCH, SEQUENCE, labels])]

    def forward(self, x_BTC: Tensor, mask_BT: Tensor | None) -> tuple[Tensor, ...]:
        return (self.out(x_BTC),)


class QuestionAnswering(Head):
    """A start and an end score at every token."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.out = nn.Linear(hidden, 2)
        self.outputs = [OutputSpec(name=f"{edge}_logits", axes=[BATCH, SEQUENCE]) for edge in ("start", "end")]

    def forward(self, x_BTC: Tensor, mask_BT: Tensor | None) -> tuple[Tensor, ...]:
        start_BT, end_BT = self.out(x_BTC).unbind(-1)
        return start_BT, end_BT


def plain_head(task: str, hidden: int, labels: int, activation_name: str = "tanh") -> Head:
    """The head of a task that needs nothing but the hidden states; KeyError for another."""
    makers: dict[str, Callable[[], Head]] = {
        "features": lambda: Features(hidden),
        "sequence-classification": lambda: SequenceClassification(hidden, labels, activation_name),
        "token-classification": lambda: TokenClassification(hidden, labels),
        "question-answering": lambda: QuestionAnswering(hidden),
    }
    return makers[task]()


def mean_of_tokens(x_BTC: Tensor, mask_BT: Tensor | None, *, least: float) -> Tensor:
    """The mean over tokens that are not padding, [B, C]; ``least``: the divisor for a row without any."""
    if mask_BT is None:
        return x_BTC.mean(1)
    keep_BT1 = mask_BT[:, :, None].to(x_BTC.dtype)
    return (x_BTC * keep_BT1).sum(1) / keep_BT1.sum(1).clamp(min=least)
