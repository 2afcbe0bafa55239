"""Conformer blocks: attention and a convolution along time, between two feed-forwards that count half.

Gulati et al., "Conformer" (arXiv:2005.08100), section 2, in the two forms that transformers released: Wav2Vec2-BERT's
(`CausalConvolution`) and Wav2Vec2-Conformer's (`CentredConvolution`).
"""

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posexport.encodings.encoding import Encoding
from posexport.encodings.positions import Positions
from posexport.models.layer import Attention, LayerConfig
from posexport.nn.feed_forward import FeedForward, activation
from posexport.nn.projections import merge_heads, split_heads


class ChannelNorm(nn.LayerNorm):
    """Layer normalisation of ``x_BCT`` over its channels."""

    def forward(self, x_BCT: Tensor) -> Tensor:
        return super().forward(x_BCT.mT).mT


class FixedBatchNorm(nn.Module):
    """Batch normalisation of ``x_BCT`` at inference, by the mean and variance that training left."""

    def __init__(self, channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.mean = nn.Parameter(torch.zeros(channels))
        self.variance = nn.Parameter(torch.ones(channels))

    def forward(self, x_BCT: Tensor) -> Tensor:
        return F.batch_norm(x_BCT, self.mean, self.variance, self.weight, self.bias, training=False, eps=self.eps)


class Convolution(nn.Module, ABC):
    """Normalisation, gated linear unit, depthwise convolution along time, normalisation, activation, projection."""

    #: padded frames change real ones
    leaks: bool

    def __init__(self, config: LayerConfig, kernel: int) -> None:
        super().__init__()
        hidden = config.hidden
        self.norm = nn.LayerNorm(hidden, eps=config.norm.eps)
        self.gate = nn.Conv1d(hidden, 2 * hidden, 1, bias=False)
        self.depthwise = nn.Conv1d(hidden, hidden, kernel, groups=hidden, bias=False)
        self.depthwise_norm = self._second_norm(config)
        self.activation = activation(config.feedforward.activation)
        self.out = nn.Conv1d(hidden, hidden, 1, bias=False)
        before = self._before(kernel)
        self.around = (before, kernel - 1 - before)

    def forward(self, x_BTC: Tensor, real_BT1: Tensor | None) -> Tensor:
        y_BTC = self.norm(x_BTC)
        if real_BT1 is not None and not self.leaks:
            y_BTC = y_BTC.masked_fill(~real_BT1, 0.0)
        y_BCT = F.glu(self.gate(y_BTC.mT), 1)
        y_BCT = self.depthwise(F.pad(y_BCT, self.around))
        out: Tensor = self.out(self.activation(self.depthwise_norm(y_BCT))).mT
        return out

    @abstractmethod
    def _second_norm(self, config: LayerConfig) -> nn.Module:
        """The normalisation after the depthwise convolution."""

    @abstractmethod
    def _before(self, kernel: int) -> int:
        """How many earlier frames a position sees."""


class CausalConvolution(Convolution):
    """A frame sees itself and frames before; layer normalisation; padded frames are zeros (Wav2Vec2-BERT)."""

    leaks = False

    def _second_norm(self, config: LayerConfig) -> nn.Module:
        return ChannelNorm(config.hidden, eps=config.norm.eps)

    def _before(self, kernel: int) -> int:
        return kernel - 1


class CentredConvolution(Convolution):
    """A frame sees as many frames after as before; batch normalisation; padded frames are not masked.

    That they are not is the released code's doing (Wav2Vec2-Conformer), and what its weights were trained with.
    """

    leaks = True

    def _second_norm(self, config: LayerConfig) -> nn.Module:
        return FixedBatchNorm(config.hidden)

    def _before(self, kernel: int) -> int:
        return (kernel - 1) // 2


class RotatedInputAttention(Attention):
    """Attention that rotates its input, split into heads, before the Q and K projections; values see it as it is.

    The released code of both models, for ``position_embeddings_type="rotary"``. A score is then no function of the
    distance.
    """

    def rotated(self, x_BTC: Tensor, context_BSC: Tensor, queries: Positions, keys: Positions) -> tuple[Tensor, Tensor]:
        """Queries [B, H, T, D] and keys [B, H, S, D] with their positions."""
        x_BHTD = self.encoding.rotate(split_heads(x_BTC, self.heads), queries, "query")
        context_BHSD = self.encoding.rotate(split_heads(context_BSC, self.heads), keys, "key")
        return self.queries(merge_heads(x_BHTD)), self.keys(merge_heads(context_BHSD))


class ConformerLayer(nn.Module):
    """Half a feed-forward, attention, convolution, half a feed-forward, each around a sum; then a normalisation."""

    def __init__(self, config: LayerConfig, attention: Attention, convolution: Convolution) -> None:
        super().__init__()
        hidden, eps = config.hidden, config.norm.eps
        self.first_norm, self.first = nn.LayerNorm(hidden, eps=eps), FeedForward(config.feedforward, hidden)
        self.attention_norm, self.attention = nn.LayerNorm(hidden, eps=eps), attention
        self.convolution = convolution
        self.second_norm, self.second = nn.LayerNorm(hidden, eps=eps), FeedForward(config.feedforward, hidden)
        self.norm = nn.LayerNorm(hidden, eps=eps)

    def forward(self, x_BTC: Tensor, mask_B11T: Tensor | None, real_BT1: Tensor | None, positions: Positions) -> Tensor:
        x_BTC = x_BTC + 0.5 * self.first(self.first_norm(x_BTC))
        y_BTC = self.attention_norm(x_BTC)
        x_BTC = x_BTC + self.attention(y_BTC, y_BTC, mask_B11T, positions, positions)
        x_BTC = x_BTC + self.convolution(x_BTC, real_BT1)
        x_BTC = x_BTC + 0.5 * self.second(self.second_norm(x_BTC))
        out: Tensor = self.norm(x_BTC)
        return out


def conformer_layer(
    config: LayerConfig, encoding: Encoding, convolution: type[Convolution], kernel: int, *, rotates_input: bool
) -> ConformerLayer:
    """A block with the encoding as its layer uses it."""
    attention = RotatedInputAttention if rotates_input else Attention
    return ConformerLayer(config, attention(config.attention, config.hidden, encoding), convolution(config, kernel))
