"""The transformer layer: attention, optional cross attention, and a feed-forward, each with its residual.

Vaswani et al., "Attention Is All You Need" (arXiv:1706.03762), section 3. Text encoders, vision and audio models are
made of it. Dropout is left out: these definitions are for inference.

Shape letters: B batch, T tokens, S tokens attended to, H heads, D head size, C model size.
"""

from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from posexport.base.options.check import Size
from posexport.encodings.encoding import Encoding
from posexport.encodings.positions import Positions
from posexport.errors import PosexportError
from posexport.models.embeddings import EmbeddingConfig
from posexport.nn.attention import Score, scoring
from posexport.nn.config import Config, named
from posexport.nn.feed_forward import FeedForward, FeedForwardConfig
from posexport.nn.norms import NormConfig, Residual, ResidualConfig
from posexport.nn.projections import EncodedAttention


@dataclass(frozen=True, kw_only=True)
class AttentionConfig(Config):
    """``head_width``: channels of a head where they are not ``hidden / heads``."""

    heads: Size = 5
    head_width: Size | None = None
    #: the scoring function of a query and a key (`posexport.nn.attention`)
    score: Score = "dot"
    #: scores are divided by the square root of the head size
    scaled: bool = True
    bias: bool = named("attention_bias", True)
    #: keys have a bias where the other projections do; it adds the same to all scores of a query (Whisper has none)
    key_bias: bool = True

    def head_size(self, hidden: int) -> int:
        """Channels of a head, in a model of ``hidden`` channels."""
        return self.head_width or hidden // self.heads


@dataclass(frozen=True, kw_only=True)
class LayerConfig(Config):
    """Configuration of the sublayers of a layer."""

    hidden: Size = 60
    attention: AttentionConfig = field(default_factory=AttentionConfig)
    feedforward: FeedForwardConfig = field(default_factory=FeedForwardConfig)
    norm: NormConfig = field(default_factory=NormConfig)
    residual: ResidualConfig = field(default_factory=ResidualConfig)
    cross_attention: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.attention.head_width is None and self.hidden % self.attention.heads:
            raise PosexportError(
                f"hidden must be a multiple of heads, got hidden={self.hidden}, heads={self.attention.heads}"
            )

    @property
    def head_size(self) -> int:
        return self.attention.head_size(self.hidden)


class Attention(EncodedAttention):
    """Multi-head attention of ``x_BTC`` to ``context_BSC``, with the encoding's rotation and terms."""

    def __init__(self, config: AttentionConfig, hidden: int, encoding: Encoding) -> None:
        size = config.head_size(hidden)
        if encoding.reads_input and config.heads * size != hidden:
            raise PosexportError(
                f"{encoding.name} reads the attention's input head by head, so a head must be hidden / heads wide; "
                f"got hidden={hidden}, heads={config.heads}, head_width={config.head_width}"
            )
        super().__init__(hidden, config.heads, size, bias=config.bias, key_bias=config.key_bias)
        self.scale = (size * encoding.score_terms) ** -0.5 if config.scaled else 1.0
        self.scoring = scoring(config.score, config.heads, size)
        self.encoding = encoding

    def forward(
        self, x_BTC: Tensor, context_BSC: Tensor, mask_B11S: Tensor | None, queries: Positions, keys: Positions
    ) -> Tensor:
        q_BHTD, k_BHSD = self.rotated(x_BTC, context_BSC, queries, keys)
        return self.attended(x_BTC, q_BHTD, k_BHSD, self.values(context_BSC), mask_B11S, queries, keys)

    def rotated(self, x_BTC: Tensor, context_BSC: Tensor, queries: Positions, keys: Positions) -> tuple[Tensor, Tensor]:
        """Queries [B, H, T, D] and keys [B, H, S, D] with their positions."""
        q_BHTD = self.encoding.rotate(self.queries(x_BTC), queries, "query")
        k_BHSD = self.encoding.rotate(self.keys(context_BSC), keys, "key")
        return self.scoring.queries(q_BHTD), k_BHSD


@dataclass(frozen=True)
class Memory:
    """What cross attention reads: another sequence's states, their additive mask and their positions."""

    states_BSC: Tensor
    mask_B11S: Tensor | None
    positions: Positions


class Sublayers(nn.Module):
    """An attention, a cross attention if there is one, and a feed-forward, each with its residual."""

    def __init__(
        self, config: LayerConfig, attention: nn.Module, cross_attention: nn.Module | None = None, *, norms: bool = True
    ) -> None:
        """``norms``: the attention has a normalisation."""
        super().__init__()
        hidden, norm, residual = config.hidden, config.norm, config.residual
        self.attention = attention
        self.attention_residual = Residual(residual if norms else replace(residual, norm="none"), norm, hidden)
        self.cross_attention = cross_attention
        self.cross_residual = None if cross_attention is None else Residual(residual, norm, hidden)
        self.feedforward = FeedForward(config.feedforward, hidden) if config.feedforward.size else None
        self.feedforward_residual = Residual(residual, norm, hidden) if config.feedforward.size else None

    def crossed(self, x_BTC: Tensor, *inputs: Any) -> Tensor:
        """The cross attention's sublayer; ``inputs``: further inputs of the cross attention."""
        if self.cross_attention is None or self.cross_residual is None:
            return x_BTC
        return self.cross_residual.after(x_BTC, self.cross_attention(self.cross_residual.before(x_BTC), *inputs))

    def fed_forward(self, x_BTC: Tensor) -> Tensor:
        if self.feedforward is None or self.feedforward_residual is None:
            return x_BTC
        return self.feedforward_residual.after(x_BTC, self.feedforward(self.feedforward_residual.before(x_BTC)))


class Layer(Sublayers):
    """An attention with further inputs, then a feed-forward."""

    def forward(self, x_BTC: Tensor, *inputs: Any) -> Tensor:
        """``inputs``: further inputs of the attention."""
        y_BTC = self.attention(self.attention_residual.before(x_BTC), *inputs)
        return self.fed_forward(self.attention_residual.after(x_BTC, y_BTC))


class EncoderLayer(Sublayers):
    """Self-attention in both directions, optional cross attention, feed-forward."""

    attention: Attention

    def __init__(self, config: LayerConfig, encoding: Encoding, index: int, *, first_norm: bool = True) -> None:
        """``first_norm``: the attention of the layer with ``index`` 0 has a normalisation too."""
        attentions = [Attention(config.attention, config.hidden, encoding.in_layer(index))]
        if config.cross_attention:
            attentions.append(Attention(config.attention, config.hidden, encoding.in_layer(index)))
        super().__init__(config, *attentions, norms=first_norm or index > 0)

    def forward(
        self, x_BTC: Tensor, mask_B11T: Tensor | None, positions: Positions, memory: Memory | None = None
    ) -> Tensor:
        y_BTC = self.attention_residual.before(x_BTC)
        x_BTC = self.attention_residual.after(x_BTC, self.attention(y_BTC, y_BTC, mask_B11T, positions, positions))
        if memory is not None:
            x_BTC = self.crossed(x_BTC, memory.states_BSC, memory.mask_B11S, positions, memory.positions)
        return self.fed_forward(x_BTC)


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(Config):
    """Embeddings and a stack of layers."""

    embedding: EmbeddingConfig = field(default_factory=EmbeddingConfig)
    layer: LayerConfig = field(default_factory=LayerConfig)
    layers: Size = 2
    final_norm: bool = False

    @property
    def vocab(self) -> int:
        return self.embedding.vocab

    @property
    def padding_id(self) -> int:
        """The token that fills padded slots."""
        return self.embedding.padding_id

    @property
    def hidden(self) -> int:
        return self.layer.hidden

    @property
    def heads(self) -> int:
        return self.layer.attention.heads

    @property
    def head_size(self) -> int:
        return self.layer.head_size
