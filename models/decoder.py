"""A decoder of the GPT and Llama families, with any position encoding.

Radford et al. (2018, 2019); Touvron et al., "LLaMA" (arXiv:2302.13971). Keys after a query are masked by position.
Tokens are numbered by the mask, so that padding on either side moves no token. Dropout is left out.

Shape letters: B batch, T tokens, S keys, H heads, G heads of keys and values, D head size, C model size.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from posexport.encodings.encoding import Encoding
from posexport.errors import PosexportError
from posexport.models.embeddings import EmbeddingConfig
from posexport.models.layer import AttentionConfig, LayerConfig
from posexport.models.transformer import TransformerConfig
from posexport.nn.attention import additive, attend, shared
from posexport.nn.caching import Caching, KeysAndValues
from posexport.nn.config import Config, above_zero, above_zero_or_none, named
from posexport.nn.feed_forward import FeedForward
from posexport.nn.norms import LayerNormOfHeads, NormConfig, normalisation
from posexport.nn.projections import Projections, split_heads
from posexport.nn.reach import Reach
from posexport.nn.residual import Residual, ResidualConfig
from posexport.nn.scoring import SoftCapped, scoring


@dataclass(frozen=True, kw_only=True)
class DecoderAttentionConfig(AttentionConfig):
    """``kv_heads``: heads of keys and values, a divisor of ``heads`` (None: as many)."""

    kv_heads: int | None = None
    #: queries and keys are normalised before they are rotated: head by head, by factors that all heads share or by each
    #: head's own (Henry et al., arXiv:2010.04245, for the idea; Qwen 3, StableLM 2), or all heads as one (OLMo 2)
    head_norm: Literal["none", "shared", "each", "projection"] = "none"
    #: the output projection has a bias (None: where the others have one)
    output_bias: bool | None = None
    #: scores are divided by the square root of this (None: of the head size)
    scale_size: float | None = None
    #: scores of query and key, scaled, stay below this (Gemma 2, arXiv:2408.00118, section 2)
    score_cap: float | None = None
    #: a learned score of every head takes part in the softmax and has no value (gpt-oss)
    sinks: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kv_heads is not None and (self.kv_heads < 1 or self.heads % self.kv_heads):
            raise PosexportError(f"kv_heads must divide heads={self.heads}, got {self.kv_heads}")
        above_zero_or_none(scale_size=self.scale_size, score_cap=self.score_cap)
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


@dataclass(frozen=True, kw_only=True)
class LanguageModelConfig(Config):
    """The head that gives logits."""

    #: the token embeddings are the head's weights too
    tied: bool = True
    bias: bool = named("head_bias", False)
    #: hidden states are multiplied by this before the head (T5, released code)
    scale: float = named("head_scale", 1.0)
    #: logits stay below this (Gemma 2, arXiv:2408.00118, section 2)
    cap: float | None = named("logit_cap", None)

    def __post_init__(self) -> None:
        above_zero(head_scale=self.scale)
        above_zero_or_none(logit_cap=self.cap)


@dataclass(frozen=True, kw_only=True)
class DecoderConfig(TransformerConfig):
    """Embeddings, a stack of layers with causal attention, and a head."""

    embedding: EmbeddingConfig = field(default_factory=lambda: EmbeddingConfig(norm=False))
    layer: DecoderLayerConfig = field(default_factory=DecoderLayerConfig)
    final_norm: bool = True
    head: LanguageModelConfig = field(default_factory=LanguageModelConfig)
    #: narrower embeddings are projected to the model's width before positions are added, without a bias, and hidden
    #: states back to it (OPT)
    project_first: bool = False

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values."""
        return self.layer.attention.kv_heads or self.heads


class DecoderAttention(Projections):
    """Multi-head attention to the token itself and the ones before it, with grouped queries (GQA) if asked for."""

    def __init__(self, config: DecoderAttentionConfig, norm: NormConfig, hidden: int, encoding: Encoding) -> None:
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
        self.scale = ((config.scale_size or size) * encoding.score_terms) ** -0.5 if config.scaled else 1.0
        self.sink = nn.Parameter(torch.zeros(self.heads)) if config.sinks else None
        self.norm_before_split = config.head_norm == "projection"
        self.query_norm = head_normalisation(config, norm, self.heads, size)
        self.key_norm = head_normalisation(config, norm, self.kv_heads, size)
        capped = None if config.score_cap is None else SoftCapped(config.score_cap / self.scale)
        self.scoring = capped or scoring(config.score, self.heads, size)
        self.encoding = encoding

    def forward(
        self, x_BTC: Tensor, mask_B11S: Tensor | None, at: Reach, past: KeysAndValues | None
    ) -> tuple[Tensor, KeysAndValues]:
        """The output [B, T, C], and keys and values of ``past`` and new tokens as the cache keeps them."""
        q_BHTD = self._normalised(self.query(x_BTC), self.heads, self.query_norm)
        k_BGTD = self._normalised(self.key(x_BTC), self.kv_heads, self.key_norm)
        q_BHTD = self.encoding.rotate(q_BHTD, at.queries, "query")
        kept = at.kept(self.encoding, k_BGTD, self.values(x_BTC), past)
        q_BHTD = self.scoring.queries(q_BHTD)
        k_BHSD = shared(kept.keys, self.heads)
        read_BHTD = split_heads(x_BTC, self.heads) if self.encoding.reads_input else q_BHTD
        context_BHTD = attend(
            q_BHTD,
            kept.keys,
            kept.values,
            scale=self.scale,
            mask=mask_B11S,
            scores=self.encoding.scores(read_BHTD, k_BHSD, at.queries, at.keys),
            values=self.encoding.values(at.queries, at.keys),
            base=self.scoring.base(k_BHSD, at.queries, at.keys),
            causal=(at.queries, at.keys),
            places=kept.buffers,
            sink=self.sink,
        )
        return self.joined(context_BHTD), kept.present

    def _normalised(self, x_BTC: Tensor, heads: int, norm: nn.Module | None) -> Tensor:
        """Queries or keys [B, H, T, D]."""
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
        """What the tokens read from ``memory``, [B, T, C]."""
        return self.joined(attend(self.queries(x_BTC), *memory, scale=self.scale, mask=mask_B11S))


@dataclass(frozen=True)
class Crossed:
    """What a decoder reads from an encoder: every layer's keys and values, and the mask of the encoder's tokens."""

    kept: Sequence[KeysAndValues]
    mask_B11S: Tensor | None


class DecoderLayer(nn.Module):
    """Causal self-attention, cross attention if asked for, feed-forward."""

    def __init__(self, config: DecoderLayerConfig, encoding: Encoding) -> None:
        super().__init__()
        hidden, norm, residual = config.hidden, config.norm, config.residual
        self.parallel_norms = config.parallel_norms
        self.attention = DecoderAttention(config.attention, norm, hidden, encoding)
        self.attention_residual = Residual(residual, norm, hidden)
        self.cross_attention = CrossAttention(config.attention, hidden) if config.cross_attention else None
        self.cross_residual = Residual(residual, norm, hidden) if config.cross_attention else None
        self.feedforward = FeedForward(config.feedforward, hidden) if config.feedforward.size else None
        has_own = config.feedforward.size and config.parallel_norms != 1
        self.feedforward_residual = Residual(residual, norm, hidden) if has_own else None

    def forward(
        self,
        x_BTC: Tensor,
        mask_B11S: Tensor | None,
        at: Reach,
        past: KeysAndValues | None = None,
        memory: KeysAndValues | None = None,
        memory_mask_B11S: Tensor | None = None,
    ) -> tuple[Tensor, KeysAndValues]:
        """The layer's answer, and keys and values of past and new tokens as the cache keeps them."""
        read_BTC = self.attention_residual.before(x_BTC)
        y_BTC, present = self.attention(read_BTC, mask_B11S, at, past)
        if self.parallel_norms is not None and self.feedforward is not None:
            if self.feedforward_residual is not None:
                read_BTC = self.feedforward_residual.before(x_BTC)
            return self.attention_residual.after(x_BTC, y_BTC + self.feedforward(read_BTC)), present
        x_BTC = self.attention_residual.after(x_BTC, y_BTC)
        if memory is not None and self.cross_attention is not None and self.cross_residual is not None:
            y_BTC = self.cross_attention(self.cross_residual.before(x_BTC), memory, memory_mask_B11S)
            x_BTC = self.cross_residual.after(x_BTC, y_BTC)
        if self.feedforward is None or self.feedforward_residual is None:
            return x_BTC, present
        y_BTC = self.feedforward(self.feedforward_residual.before(x_BTC))
        return self.feedforward_residual.after(x_BTC, y_BTC), present


class Decoder(nn.Module):
    """Embeddings and layers: token ids [B, T] to hidden states [B, T, C]."""

    def __init__(self, config: DecoderConfig, encoding: Encoding) -> None:
        super().__init__()
        self.config = config
        #: how past tokens are kept; `posexport.sources.cached` changes it
        self.caching = Caching()
        width, norm = config.embedding.width or config.hidden, config.layer.norm
        self.token = nn.Embedding(config.vocab, width)
        # an encoding with parameters in every layer is a template here: a copy beside the layers' would be dead weight
        self.encoding = None if encoding.per_layer else encoding
        self.scale = config.embedding.scale
        self.project_in = self.project_out = None
        if config.project_first and width != config.hidden:
            self.project_in = nn.Linear(width, config.hidden, bias=False)
            self.project_out = nn.Linear(config.hidden, width, bias=False)
        base = config.hidden if config.project_first else width
        joined = base + encoding.added_width
        self.embedding_norm = normalisation(norm, joined) if config.embedding.norm else None
        differs = joined > base or (config.embedding.width and not config.project_first)
        self.project = nn.Linear(joined, config.hidden) if differs else None
        self.layers = nn.ModuleList(DecoderLayer(config.layer, encoding.in_layer(i)) for i in range(config.layers))
        self.final_norm = normalisation(norm, config.hidden) if config.final_norm else None

    @property
    def width(self) -> int:
        """Of the hidden states that it gives."""
        return self.config.hidden if self.project_out is None else self.project_out.out_features

    def crossed(self, states_BSC: Tensor) -> list[KeysAndValues]:
        """Every layer's keys and values of an encoder's states."""
        crosses = [layer.cross_attention for layer in self.layers if isinstance(layer, DecoderLayer)]
        return [cross.keys_and_values(states_BSC) for cross in crosses if cross is not None]

    @property
    def encodings(self) -> list[Encoding]:
        """The encoding of every layer: one and the same where all share it."""
        return [layer.attention.encoding for layer in self.layers if isinstance(layer, DecoderLayer)]

    def forward(
        self,
        ids_BT: Tensor,
        mask_BS: Tensor | None = None,
        past: Sequence[KeysAndValues] | None = None,
        memory: Crossed | None = None,
        positions_BT: Tensor | None = None,
    ) -> tuple[Tensor, list[KeysAndValues]]:
        """Hidden states of the new tokens, and every layer's keys and values of all, as the cache keeps them.

        ``mask_BS``: of past and new. ``positions_BT``: the new tokens', where the mask does not say them.
        """
        x_BTC: Tensor = self.token(ids_BT)
        mask_BS = self.caching.cache.mask(ids_BT, mask_BS, past)
        at = Reach.by_mask(mask_BS, ids_BT.shape[1], self.caching, positions_BT)
        if self.scale != 1:
            x_BTC = x_BTC * self.scale
        if self.project_in is not None:
            x_BTC = self.project_in(x_BTC)
        if self.encoding is not None:
            x_BTC = self.encoding.embed(x_BTC, at.queries)
        if self.embedding_norm is not None:
            x_BTC = self.embedding_norm(x_BTC)
        if self.project is not None:
            x_BTC = self.project(x_BTC)
        mask_B11S = additive(mask_BS, x_BTC)
        present = []
        for index, layer in enumerate(self.layers):
            crossed = () if memory is None else (memory.kept[index], memory.mask_B11S)
            x_BTC, kept = layer(x_BTC, mask_B11S, at, None if past is None else past[index], *crossed)
            present.append(kept)
        if self.final_norm is not None:
            x_BTC = self.final_norm(x_BTC)
        return (x_BTC if self.project_out is None else self.project_out(x_BTC)), present


class LanguageModel(nn.Module):
    """Hidden states [B, T, C] to logits over the vocabulary, through the model's embeddings where these are tied."""

    def __init__(self, config: DecoderConfig, token: nn.Embedding) -> None:
        super().__init__()
        width = config.embedding.width or config.hidden
        wider = width != config.hidden and not config.project_first
        self.narrow = nn.Linear(config.hidden, width, bias=False) if wider else None
        self.out = nn.Linear(width, config.vocab, bias=config.head.bias)
        self.scale = config.head.scale
        self.cap = config.head.cap
        if config.head.tied:
            self.out.weight = token.weight

    def forward(self, x_BTC: Tensor) -> Tensor:
        if self.scale != 1:
            x_BTC = x_BTC * self.scale
        logits: Tensor = self.out(x_BTC if self.narrow is None else self.narrow(x_BTC))
        return logits if self.cap is None else (logits / self.cap).tanh() * self.cap
