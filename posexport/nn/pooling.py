"""Vectors of a text from the vectors of its tokens: what sentence-transformers puts on a transformer.

Reimers and Gurevych, "Sentence-BERT" (arXiv:1908.10084), section 3; weighted mean: Muennighoff, "SGPT"
(arXiv:2202.08904), section 3.1. Padding is what the mask says, on either side of a row.

Shape letters: B batch, T tokens, C channels.

Formal, Piwowarski, Clinchant, "SPLADE" (arXiv:2107.05720), section 3; the maximum over tokens: "SPLADE v2"
(arXiv:2109.10086), section 3.1.

Shape letters: B batch, T tokens, C channels, V words.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posexport.base.spec import BATCH, SEQUENCE, OutputSpec
from posexport.nn.feed_forward import activation
from posexport.nn.heads import Head, SequenceClassification, mean_of_tokens

#: by the names of sentence-transformers 6, in the order in which it concatenates several
Mode = Literal["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
MODES: tuple[Mode, ...] = get_args(Mode)
#: the divisor for a sum of no tokens
_LEAST = 1e-9


def _real_tokens(x_BTC: Tensor, mask_BT: Tensor | None) -> Tensor:
    """1 for a token and 0 for padding, [B, T, 1], of the type of the states."""
    mask_BT = x_BTC.new_ones(x_BTC.shape[:2]) if mask_BT is None else (mask_BT != 0).to(x_BTC.dtype)
    return mask_BT[:, :, None]


def _mean(x_BTC: Tensor, mask_BT: Tensor | None) -> Tensor:
    return mean_of_tokens(x_BTC, mask_BT, least=_LEAST)


def _mean_sqrt_len(x_BTC: Tensor, mask_BT: Tensor | None) -> Tensor:
    """The sum over tokens divided by the square root of how many there are."""
    kept_BT1 = _real_tokens(x_BTC, mask_BT)
    return (x_BTC * kept_BT1).sum(1) / kept_BT1.sum(1).clamp(min=_LEAST).sqrt()


def _weighted_mean(x_BTC: Tensor, mask_BT: Tensor | None, pooled_BT: Tensor | None = None) -> Tensor:
    """Token t of a text counts t times, from 1 on: later tokens of a decoder have seen more.

    ``pooled_BT``: the tokens that count, numbered among all that the mask keeps; None: all of them.
    """
    kept_BT1 = _real_tokens(x_BTC, mask_BT)
    weight_BT1 = kept_BT1.cumsum(1) * (kept_BT1 if pooled_BT is None else _real_tokens(x_BTC, pooled_BT))
    return (x_BTC * weight_BT1).sum(1) / weight_BT1.sum(1).clamp(min=_LEAST)


def _max(x_BTC: Tensor, mask_BT: Tensor | None) -> Tensor:
    if mask_BT is None:
        return x_BTC.amax(1)
    return torch.where(mask_BT[:, :, None] != 0, x_BTC, torch.finfo(x_BTC.dtype).min).amax(1)


def last_token(x_BTC: Tensor, mask_BT: Tensor | None) -> Tensor:
    """The state of the last token before padding on the right, or before the end; of padding alone the first's."""
    if mask_BT is None:
        return x_BTC[:, -1]
    place_T = torch.arange(x_BTC.shape[1], dtype=torch.int64, device=x_BTC.device)
    last_B = torch.where(mask_BT != 0, place_T, 0).amax(1)
    return x_BTC.gather(1, last_B[:, None, None].expand(-1, 1, x_BTC.shape[2]))[:, 0]


_POOLINGS: dict[Mode, Callable[[Tensor, Tensor | None], Tensor]] = {
    "cls": lambda x_BTC, _: x_BTC[:, 0],
    "max": _max,
    "mean": _mean,
    "mean_sqrt_len_tokens": _mean_sqrt_len,
    "weightedmean": _weighted_mean,
    "lasttoken": last_token,
}


def _without_prompt(mode: Mode, x_BTC: Tensor, mask_BT: Tensor | None, prompt_BT: Tensor) -> Tensor:
    """A pooling of the tokens that the mask keeps and that are not the prompt's; zeros where there are none.

    As sentence-transformers 6 does it (``Pooling._exclude_prompt_from_mask``): ``cls`` is the first of these tokens,
    and ``weightedmean`` counts from the prompt's first token. Without a token ``cls`` is the first slot. Not as there:
    the maximum of no tokens is zero too, not -inf.
    """
    pooled_BT = prompt_BT == 0
    if mask_BT is not None:
        pooled_BT = pooled_BT & (mask_BT != 0)
    if mode == "cls":
        return x_BTC.gather(1, _first(pooled_BT)[:, None, None].expand(-1, 1, x_BTC.shape[2]))[:, 0]
    if mode == "weightedmean":
        return _weighted_mean(x_BTC, mask_BT, pooled_BT)
    some_B1 = pooled_BT.any(1, keepdim=True)
    return torch.where(some_B1, _POOLINGS[mode](x_BTC, pooled_BT), 0)


def _first(marked_BT: Tensor) -> Tensor:
    """The first slot that is marked, [B]; 0 where none is."""
    slot_T = torch.arange(marked_BT.shape[1], dtype=torch.int64, device=marked_BT.device)
    first_B = torch.where(marked_BT, slot_T, marked_BT.shape[1]).amin(1)
    return torch.where(marked_BT.any(1), first_B, 0)


@dataclass(frozen=True, kw_only=True)
class DenseConfig:
    """A linear projection and an activation (None: none).

    ``skip``: its input is added to its output, through a further projection where the sizes differ.
    """

    inner: int
    outer: int
    bias: bool = True
    activation: str | None = None
    skip: bool = False


class Dense(nn.Module):
    def __init__(self, config: DenseConfig) -> None:
        super().__init__()
        self.linear = nn.Linear(config.inner, config.outer, bias=config.bias)
        self.activation = None if config.activation is None else activation(config.activation)
        self.skip = config.skip
        widens = config.skip and config.inner != config.outer
        self.residual = nn.Linear(config.inner, config.outer, bias=False) if widens else None

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        if self.activation is not None:
            y = self.activation(y)
        if not self.skip:
            return y
        return y + (x if self.residual is None else self.residual(x))


@dataclass(frozen=True, kw_only=True)
class LayerNormConfig:
    """The layer normalisation of vectors (Ba et al., arXiv:1607.06450) of a size, with PyTorch's epsilon."""

    size: int


class Normed(nn.Module):
    """Layer normalisation of vectors."""

    def __init__(self, config: LayerNormConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.size)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(x)
        return y


#: None: vectors are divided by their length
StepConfig = DenseConfig | LayerNormConfig | None


def step_module(config: StepConfig) -> nn.Module:
    """A module of sentence-transformers after the pooling."""
    if config is None:
        return Normalised()
    return Dense(config) if isinstance(config, DenseConfig) else Normed(config)


class SentenceEmbedding(Head):
    """One vector a text: poolings side by side, then projections and normalisations in any order.

    ``first_kept``: ``cls`` is the first token that the mask keeps, of texts padded on the left; else the first slot.
    """

    def __init__(
        self, hidden: int, modes: Sequence[Mode], steps: Sequence[StepConfig] = (), *, first_kept: bool = False
    ) -> None:
        super().__init__()
        self.modes = tuple(modes)
        self.first_kept = first_kept
        self.reads_first_token = "cls" in modes and not first_kept
        self.steps = nn.ModuleList(step_module(step) for step in steps)
        width = next((step.outer for step in reversed(steps) if isinstance(step, DenseConfig)), hidden * len(modes))
        self.outputs = [
            OutputSpec(name="last_hidden_state", axes=[BATCH, SEQUENCE, hidden]),
            OutputSpec(name="sentence_embedding", axes=[BATCH, width]),
        ]

    def forward(self, x_BTC: Tensor, mask_BT: Tensor | None, prompt_BT: Tensor | None = None) -> tuple[Tensor, ...]:
        """``prompt_BT``: 1 for tokens that are left out of the poolings."""
        if prompt_BT is None:
            pooled = [self._pooled(mode, x_BTC, mask_BT) for mode in self.modes]
        else:
            pooled = [_without_prompt(mode, x_BTC, mask_BT, prompt_BT) for mode in self.modes]
        y_BC = pooled[0] if len(pooled) == 1 else torch.cat(pooled, -1)
        for step in self.steps:
            y_BC = step(y_BC)
        return x_BTC, y_BC

    def _pooled(self, mode: Mode, x_BTC: Tensor, mask_BT: Tensor | None) -> Tensor:
        if mode == "cls" and self.first_kept and mask_BT is not None:
            return x_BTC.gather(1, _first(mask_BT != 0)[:, None, None].expand(-1, 1, x_BTC.shape[2]))[:, 0]
        return _POOLINGS[mode](x_BTC, mask_BT)


class PooledScores(SentenceEmbedding):
    """Scores of a text or a pair, from its vector: a CrossEncoder of Pooling and Dense."""

    def __init__(
        self, hidden: int, modes: Sequence[Mode], steps: Sequence[StepConfig] = (), *, first_kept: bool = False
    ) -> None:
        super().__init__(hidden, modes, steps, first_kept=first_kept)
        self.outputs = [OutputSpec(name="logits", axes=self.outputs[-1].axes)]

    def forward(self, x_BTC: Tensor, mask_BT: Tensor | None, prompt_BT: Tensor | None = None) -> tuple[Tensor, ...]:
        return super().forward(x_BTC, mask_BT, prompt_BT)[1:]


class TokenEmbeddings(Head):
    """A vector of length 1 for every token, by projections: late interaction.

    Khattab and Zaharia, "ColBERT" (arXiv:2004.12832), section 3.2. Which tokens count is not decided here: queries are
    filled up with tokens that the mask leaves out but that count all the same (section 3.2, "query
    augmentation").
    """

    def __init__(self, hidden: int, steps: Sequence[DenseConfig]) -> None:
        super().__init__()
        self.steps = nn.ModuleList(Dense(step) for step in steps)
        width = steps[-1].outer if steps else hidden
        self.outputs = [OutputSpec(name="token_embeddings", axes=[BATCH, SEQUENCE, width])]

    def forward(self, x_BTC: Tensor, mask_BT: Tensor | None) -> tuple[Tensor, ...]:
        for step in self.steps:
            x_BTC = step(x_BTC)
        return (F.normalize(x_BTC, dim=-1),)


class LastToken(Head):
    """Scores from the last token of a text: what decoders classify and rank by. A linear projection without a bias."""

    def __init__(self, hidden: int, labels: int) -> None:
        super().__init__()
        self.out = nn.Linear(hidden, labels, bias=False)
        self.outputs = [OutputSpec(name="logits", axes=[BATCH, labels])]

    def forward(self, x_BTC: Tensor, mask_BT: Tensor | None) -> tuple[Tensor, ...]:
        return (self.out(last_token(x_BTC, mask_BT)),)


class LastTokenClassification(SequenceClassification):
    """Logits over labels from the last token that the mask keeps: dense, activation, linear."""

    reads_first_token = False

    def forward(self, x_BTC: Tensor, mask_BT: Tensor | None) -> tuple[Tensor, ...]:
        return (self.scores(last_token(x_BTC, mask_BT)),)


class Normalised(nn.Module):
    """Scales vectors to length 1; has no parameters."""

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=-1)


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
