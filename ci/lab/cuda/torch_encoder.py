"""The encoder that a PyTorch user would run in the place of a bundle: scaled_dot_product_attention, or FlexAttention.

Weights are random; sizes and work are those of the built-in encoders. Shape letters: B batch, T tokens, C channels, H
heads, D head size.
"""

import dataclasses
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

POSITIONS = 2048  #: of relative-key: its table has a row for each distance between them
Scores = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Of a model; ``vocab``: of its embeddings."""

    layers: int = 4
    hidden: int = 768
    heads: int = 12
    feedforward: int = 3072
    vocab: int = 1000

    def settings(self) -> tuple[str, ...]:
        """Of the built-in encoder."""
        return tuple(f"{name}={value}" for name, value in dataclasses.asdict(self).items())

    def flops(self, batch: int, length: int) -> float:
        """Of a call: projections, feed-forward, scores and context."""
        weights = 4 * self.hidden**2 + 2 * self.hidden * self.feedforward
        return 2 * batch * length * self.layers * (weights + 2 * length * self.hidden)

    def moved(self, batch: int, length: int) -> float:
        """Bytes in half precision that a call must read or write: weights once, and what layers hand on."""
        weights = 4 * self.hidden**2 + 2 * self.hidden * self.feedforward
        return 2 * self.layers * (weights + batch * length * (8 * self.hidden + 2 * self.feedforward))


class Encoder(nn.Module):
    """``kind``: nope, sinusoidal, rope, alibi, t5 or relative-key. ``flex``: by FlexAttention."""

    def __init__(self, kind: str, sizes: Sizes, *, flex: bool) -> None:
        super().__init__()
        self.kind, self.heads = kind, sizes.heads
        self.embed = nn.Embedding(sizes.vocab, sizes.hidden)
        self.layers = nn.ModuleList(Layer(kind, sizes, flex=flex) for _ in range(sizes.layers))
        self.buckets = nn.Embedding(32, sizes.heads)

    def forward(self, ids_BT: Tensor) -> Tensor:
        """[B, T, C]"""
        x_BTC = self.embed(ids_BT)
        at_T = torch.arange(ids_BT.shape[1], device=ids_BT.device)
        if self.kind == "sinusoidal":
            x_BTC = x_BTC + waves(at_T, x_BTC.shape[-1], x_BTC.dtype)
        shared = self._shared(at_T, x_BTC.dtype)
        for layer in self.layers:
            x_BTC = layer(x_BTC, at_T, shared)
        return x_BTC

    def _shared(self, at_T: Tensor, dtype: torch.dtype) -> Tensor:
        """What all layers share of positions: by head and distance for alibi and t5, else nothing."""
        distance_D = torch.arange(1 - at_T.shape[0], at_T.shape[0], device=at_T.device)
        if self.kind == "alibi":
            slope_H = torch.exp2(-8 * (1 + torch.arange(self.heads, device=at_T.device)) / self.heads)
            return (-slope_H[:, None] * distance_D.abs()).to(dtype)
        if self.kind == "t5":
            far = 8 + (distance_D.abs().clamp(min=8).float() / 8).log() * (8 / math.log(16))
            near = torch.where(distance_D.abs() < 8, distance_D.abs(), far.long().clamp(max=15))
            return self.buckets(near + 16 * (distance_D > 0)).T.to(dtype)
        return distance_D[:0].to(dtype)


class Layer(nn.Module):
    """Attention and feed-forward, normalised behind each as BERT does."""

    def __init__(self, kind: str, sizes: Sizes, *, flex: bool) -> None:
        super().__init__()
        self.kind, self.heads, self.flex = kind, sizes.heads, flex
        self.qkv, self.out = nn.Linear(sizes.hidden, 3 * sizes.hidden), nn.Linear(sizes.hidden, sizes.hidden)
        self.up, self.down = (nn.Linear(*ends) for ends in both(sizes.hidden, sizes.feedforward))
        self.norms = nn.ModuleList(nn.LayerNorm(sizes.hidden) for _ in range(2))
        self.distances = nn.Parameter(torch.randn(2 * POSITIONS - 1, sizes.hidden // sizes.heads) / 8)

    def forward(self, x_BTC: Tensor, at_T: Tensor, shared: Tensor) -> Tensor:
        """[B, T, C]"""
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x_BTC).chunk(3, -1))
        if self.kind == "rope":
            q, k = (rotated(each, at_T) for each in (q, k))
        context = (self._flex if self.flex else self._sdpa)(q, k, v, at_T, shared)
        x_BTC = self.norms[0](x_BTC + self.out(context.transpose(1, 2).flatten(2)))
        return self.norms[1](x_BTC + self.down(F.gelu(self.up(x_BTC))))

    def _sdpa(self, q: Tensor, k: Tensor, v: Tensor, at_T: Tensor, shared: Tensor) -> Tensor:
        distance_TS = at_T[:, None] - at_T[None, :]
        bias = None
        if self.kind in ("alibi", "t5"):
            bias = shared[:, distance_TS + at_T.shape[0] - 1][None]
        elif self.kind == "relative-key":
            row_TS = (distance_TS + at_T.shape[0] - 1).expand(*q.shape[:2], -1, -1)
            bias = (q @ self._rows(at_T).T).gather(-1, row_TS) / q.shape[-1] ** 0.5
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)

    def _rows(self, at_T: Tensor) -> Tensor:
        """The table's rows for the distances between these positions, [2 T - 1, D]."""
        return self.distances[POSITIONS - at_T.shape[0] : POSITIONS + at_T.shape[0] - 1]

    def _flex(self, q: Tensor, k: Tensor, v: Tensor, at_T: Tensor, shared: Tensor) -> Tensor:
        from torch.nn.attention.flex_attention import flex_attention

        length, change = at_T.shape[0], None
        if self.kind in ("alibi", "t5"):

            def by_distance(score: Tensor, _: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
                return score + shared[h, i - j + length - 1]

            change = by_distance
        elif self.kind == "relative-key":
            term_BHTR = (q @ self._rows(at_T).T) / q.shape[-1] ** 0.5

            def by_query(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
                return score + term_BHTR[b, h, i, i - j + length - 1]

            change = by_query
        context: Tensor = flex_attention(q, k, v, score_mod=change)
        return context


def both(hidden: int, feedforward: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """The ends of the two linear layers."""
    return (hidden, feedforward), (feedforward, hidden)


def waves(at_T: Tensor, channels: int, dtype: torch.dtype) -> Tensor:
    """Sines and cosines of positions, [T, C]."""
    frequency_F = torch.exp(torch.arange(0, channels, 2, device=at_T.device) * (-math.log(1e4) / channels))
    angle_TF = at_T[:, None] * frequency_F
    return torch.cat([angle_TF.sin(), angle_TF.cos()], -1).to(dtype)


def rotated(x_BHTD: Tensor, at_T: Tensor) -> Tensor:
    """Rotary embedding in halves."""
    cos_TD, sin_TD = (wave.repeat(1, 2) for wave in waves(at_T, x_BHTD.shape[-1], x_BHTD.dtype).chunk(2, -1)[::-1])
    first, second = x_BHTD.chunk(2, -1)
    return x_BHTD * cos_TD + torch.cat([-second, first], -1) * sin_TD
