"""The decoder's layer: causal self-attention to past and new tokens, optional cross attention, feed-forward.

Keys after a query are masked by position. Dropout is left out.

Shape letters: B batch, T new tokens, S keys, H heads, G KV heads, D head size, C model size.
"""

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from posexport.base.options.check import Positive
from posexport.encodings.encoding import Encoding
from posexport.errors import PosexportError
from posexport.models.layer import AttentionConfig, LayerConfig, Sublayers
from posexport.nn.attention import SoftCapped, attend, scoring, sees_any
from posexport.nn.caching import KeysAndValues, Reach
from posexport.nn.config import named
from posexport.nn.norms import LayerNormOfHeads, NormConfig, ResidualConfig, normalisation
from posexport.nn.projections import ClippedLinear, EncodedAttention, Projections, split_heads


@dataclass(frozen=True, kw_only=True)
class DecoderAttentionConfig(AttentionConfig):
    """``kv_heads``: KV heads, a divisor of ``heads`` (None: as many)."""

    kv_heads: int | None = None
    #: queries and keys are normalised before they are rotated: head by head, by factors that all heads share or that
    #: each head has separately (Henry et al., arXiv:2010.04245; Qwen 3, StableLM 2), or all heads as one (OLMo 2)
    head_norm: Literal["none", "shared", "each", "projection"] = "none"
    #: the output projection has a bias (None: where the others have one)
    output_bias: bool | None = None
    #: scores are divided by the square root of this (None: of the head size)
    scale_size: Positive | None = None
    #: scores of query and key, scaled, stay below this (Gemma 2, arXiv:2408.00118, section 2)
    score_cap: Positive | None = None
    #: queries, keys and values stay within this of zero (MPT)
    clip: Positive | None = named("projection_clip", None)
    #: a learned score of every head takes part in the softmax and has no value (gpt-oss)
    sinks: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kv_heads is not None and (self.kv_heads < 1 or self.heads % self.kv_heads):
            raise PosexportError(f"kv_heads must divide heads={self.heads}, got {self.kv_heads}")
        if self.score_cap is not None and self.score != "dot":
            raise PosexportError(f"score_cap is for score=dot, got score={self.score}; leave one of them out")


@dataclass(frozen=True, kw_only=True)
class DecoderLayerConfig(LayerConfig):
    """A layer with causal attention."""

    attention: DecoderAttentionConfig = field(default_factory=DecoderAttentionConfig)
    residual: ResidualConfig = field(default_factory=lambda: ResidualConfig(norm="pre"))
    #: attention and feed-forward read the same tokens, after one normalisation for both or two, and are added together
    #: (Wang and Komatsuzaki, GPT-J; Black et al., arXiv:2204.06745, section 2.1); None: one after the other
    parallel_norms: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.parallel_norms is None:
            return
        if self.parallel_norms not in (1, 2):
            raise PosexportError(f"parallel_norms must be 1 or 2 (or none), got {self.parallel_norms}")
        norm, size = self.residual.norm, self.feedforward.size
        if norm != "pre" or self.cross_attention or not size:
            raise PosexportError(
                f"parallel_norms={self.parallel_norms} needs norm=pre, a feed-forward and no cross attention; "
                f"got norm={norm}, feedforward={size}, cross_attention={self.cross_attention}"
            )
        if self.residual.output_norm:
            raise PosexportError(f"parallel_norms={self.parallel_norms} and answer_norm exclude each other; choose one")


class DecoderAttention(EncodedAttention):
    """Multi-head attention to the token itself and the ones before it, optionally with grouped queries (GQA)."""

    def __init__(
        self,
        config: DecoderAttentionConfig,
        norm: NormConfig,
        hidden: int,
        encoding: Encoding,
        *,
        causal: bool = True,
    ) -> None:
        size = config.head_size(hidden)
        super().__init__(
            hidden,
            config.heads,
            size,
            kv_heads=config.kv_heads,
            bias=config.bias,
            key_bias=config.key_bias,
            output_bias=config.output_bias,
        )
        if config.clip is not None:
            self.query, self.key, self.value = (
                ClippedLinear.of(linear, config.clip) for linear in (self.query, self.key, self.value)
            )
        self.scale = ((config.scale_size or size) * encoding.score_terms) ** -0.5 if config.scaled else 1.0
        self.sink = nn.Parameter(torch.zeros(self.heads)) if config.sinks else None
        self.norm_before_split = config.head_norm == "projection"
        self.query_norm = head_normalisation(config, norm, self.heads, size)
        self.key_norm = head_normalisation(config, norm, self.kv_heads, size)
        capped = None if config.score_cap is None else SoftCapped(config.score_cap / self.scale)
        self.scoring = capped or scoring(config.score, self.heads, size)
        self.encoding = encoding
        self.causal = causal

    def forward(
        self, x_BTC: Tensor, mask_B11S: Tensor | None, at: Reach, past: KeysAndValues | None
    ) -> tuple[Tensor, KeysAndValues]:
        """The output [B, T, C], and keys and values of ``past`` and new tokens as the cache keeps them."""
        q_BHTD = self._normalised(self.query(x_BTC), self.heads, self.query_norm)
        k_BGTD = self._normalised(self.key(x_BTC), self.kv_heads, self.key_norm)
        q_BHTD = self.encoding.rotate(q_BHTD, at.queries, "query")
        cached = at.kept(self.encoding, k_BGTD, self.values(x_BTC), past)
        q_BHTD = self.scoring.queries(q_BHTD)
        positions = (at.queries, at.keys)
        y_BTC = self.attended(
            x_BTC,
            q_BHTD,
            cached.keys,
            cached.values,
            mask_B11S,
            *positions,
            causal=positions if self.causal else None,
            buffers=cached.buffers,
            sink=self.sink,
        )
        return y_BTC, cached.present

    def _normalised(self, x_BTC: Tensor, heads: int, norm: nn.Module | None) -> Tensor:
        """Returns queries or keys [B, H, T, D], normalised."""
        if norm is None:
            return split_heads(x_BTC, heads)
        return split_heads(norm(x_BTC), heads) if self.norm_before_split else norm(split_heads(x_BTC, heads))


def head_normalisation(config: DecoderAttentionConfig, norm: NormConfig, heads: int, size: int) -> nn.Module | None:
    """The normalisation of queries or keys: [B, H, T, D] head by head, or [B, T, H * D]."""
    match config.head_norm:
        case "none":
            return None
        case "each":
            return LayerNormOfHeads(heads, size, eps=norm.eps)
        case "shared":
            return normalisation(norm, size)
        case "projection":
            return normalisation(norm, heads * size)


class CrossAttention(Projections):
    """Multi-head attention to an encoder's states. Positions take no part, as in T5, BART and Whisper.

    Keys and values of the states are the same in every call: `keys_and_values` computes them, once.
    """

    def __init__(self, config: AttentionConfig, hidden: int) -> None:
        size = config.head_size(hidden)
        super().__init__(hidden, config.heads, size, bias=config.bias, key_bias=config.key_bias)
        self.scale = size**-0.5 if config.scaled else 1.0

    def keys_and_values(self, states_BSC: Tensor) -> KeysAndValues:
        """Of an encoder's states, [B, H, S, D]."""
        return self.keys(states_BSC), self.values(states_BSC)

    def forward(self, x_BTC: Tensor, memory: KeysAndValues, mask_B11S: Tensor | None) -> Tensor:
        """Attention to ``memory`` and the output projection, [B, T, C]."""
        context_BHTD = attend(self.queries(x_BTC), *memory, scale=self.scale, mask=mask_B11S, kind="cross_attentions")
        return self.joined(context_BHTD, None if mask_B11S is None else sees_any(mask_B11S))


class DecoderLayer(Sublayers):
    """Causal self-attention, optional cross attention, feed-forward; not ``causal``: tokens see later ones too."""

    attention: DecoderAttention
    cross_attention: CrossAttention | None

    def __init__(self, config: DecoderLayerConfig, encoding: Encoding, *, causal: bool = True) -> None:
        attention = DecoderAttention(config.attention, config.norm, config.hidden, encoding, causal=causal)
        cross = CrossAttention(config.attention, config.hidden) if config.cross_attention else None
        super().__init__(config, attention, cross)
        self.parallel = config.parallel_norms is not None
        if config.parallel_norms == 1:
            self.feedforward_residual = None

    def forward(
        self,
        x_BTC: Tensor,
        mask_B11S: Tensor | None,
        at: Reach,
        past: KeysAndValues | None = None,
        memory: KeysAndValues | None = None,
        memory_mask_B11S: Tensor | None = None,
    ) -> tuple[Tensor, KeysAndValues]:
        """The layer's output, and keys and values of past and new tokens as the cache keeps them."""
        read_BTC = self.attention_residual.before(x_BTC)
        y_BTC, present = self.attention(read_BTC, mask_B11S, at, past)
        if self.parallel and self.feedforward is not None:
            if self.feedforward_residual is not None:
                read_BTC = self.feedforward_residual.before(x_BTC)
            return self.attention_residual.after(x_BTC, y_BTC + self.feedforward(read_BTC)), present
        x_BTC = self.attention_residual.after(x_BTC, y_BTC)
        if memory is not None:
            x_BTC = self.crossed(x_BTC, memory, memory_mask_B11S)
        return self.fed_forward(x_BTC), present
