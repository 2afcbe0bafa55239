"""Sequences cut into blocks of consecutive tokens, at any length, and the layer around an attention of one's own.

Attention to near tokens needs only products of tokens in the same or in neighbouring blocks. The blocks are made by
gathering rows whose numbers are computed from the length, so that no length is special and none is frozen in a trace;
places beyond the end repeat the last token and are to be masked.

Shape letters: B batch, T tokens, N blocks, Q tokens of a block, C model size.
"""

import torch
from torch import Tensor, nn

from posexport.models.layer import LayerConfig
from posexport.nn.feed_forward import FeedForward
from posexport.nn.residual import Residual


def smaller(length: int, size: int) -> int:
    """The smaller of the two, also where a trace does not know which."""
    least: int = torch.sym_min(length, size)  # type: ignore[no-untyped-call]
    return least


def starts(length: int, size: int, device: torch.device) -> Tensor:
    """The first place of every block, int64 [N]; the last block reaches the end or beyond it."""
    return torch.arange((length + size - 1) // size, device=device) * size


def inside(places: Tensor, length: int) -> Tensor:
    """Which places are those of a token."""
    return (places >= 0) & (places < length)


def take(x_BTC: Tensor, places_NQ: Tensor) -> Tensor:
    """[B, N, Q, C]: the rows at these places, the nearest row for a place that has none."""
    rows_NQ = places_NQ.clamp(min=0).minimum(torch.full_like(places_NQ[:1, :1], x_BTC.shape[1] - 1))
    taken: Tensor = x_BTC.index_select(1, rows_NQ.flatten()).unflatten(1, rows_NQ.shape)  # type: ignore[no-untyped-call]
    return taken


def join(x_BNQC: Tensor, length: int) -> Tensor:
    """[B, T, C]: the blocks one after the other, without what lies beyond the end."""
    return x_BNQC.flatten(1, 2).index_select(1, torch.arange(length, device=x_BNQC.device))


class Layer(nn.Module):
    """An attention that brings its own inputs, then a feed-forward, each with its normalisation and sum."""

    def __init__(self, config: LayerConfig, attention: nn.Module) -> None:
        super().__init__()
        self.attention = attention
        self.attention_residual = Residual(config.residual, config.norm, config.hidden)
        self.feedforward = FeedForward(config.feedforward, config.hidden)
        self.feedforward_residual = Residual(config.residual, config.norm, config.hidden)

    def forward(self, x_BTC: Tensor, *given: object) -> Tensor:
        y_BTC = self.attention(self.attention_residual.before(x_BTC), *given)
        x_BTC = self.attention_residual.after(x_BTC, y_BTC)
        y_BTC = self.feedforward(self.feedforward_residual.before(x_BTC))
        return self.feedforward_residual.after(x_BTC, y_BTC)
