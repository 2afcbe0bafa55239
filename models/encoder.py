"""An encoder of the BERT family, with any position encoding.

Devlin et al., "BERT" (arXiv:1810.04805). What differs between its heirs is in `EncoderConfig`: where the normalisation
stands and of which kind it is, whether embeddings are narrower than the model, whether layers share their weights,
whether maps have biases and the feed-forward a gate (ModernBERT, T5's encoder). Dropout is left out: these definitions
are for inference.

Shape letters: B batch, T tokens, S tokens attended to, H heads, D head size, C model size.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from posexport.encodings.encoding import Encoding
from posexport.encodings.positions import Positions
from posexport.errors import PosexportError
from posexport.models.numbering import Counted, Numbering
from posexport.models.scoring import Score, scoring
from posexport.nn.activations import activation
from posexport.nn.attention import additive as additive
from posexport.nn.attention import attend
from posexport.nn.norms import RMSNorm


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """Sizes and arrangement.

    ``embedding`` is the width of the embeddings where it is not ``hidden``, ``head_width`` that of a head where it is
    not ``hidden / heads``.
    """

    vocab: int = 101
    hidden: int = 60
    layers: int = 2
    heads: int = 5
    feedforward: int = 97
    types: int = 2
    embedding: int | None = None
    #: token embeddings are multiplied by this
    embedding_scale: float = 1.0
    head_width: int | None = None
    activation: str = "gelu"
    #: the activation is multiplied by a second linear map of the same input
    gated: bool = False
    #: what a query and a key are to each other (`posexport.models.scoring`)
    score: Score = "dot"
    #: attention divides its scores by the square root of the head's size
    scaled: bool = True
    attention_bias: bool = True
    #: keys have a bias where the other maps do; it adds the same to all scores of a query (Whisper has none)
    key_bias: bool = True
    feedforward_bias: bool = True
    eps: float = 1e-12
    #: ``rms`` divides by the root of the mean square, and neither subtracts nor adds
    norm_kind: Literal["layer", "rms"] = "layer"
    norm_bias: bool = True
    #: normalisations have learned factors (and biases); of ``layer`` only
    norm_weight: bool = True
    #: is added to the weights of ``rms``, which are stored as what they differ by (Gemma: from 1)
    norm_offset: float = 0.0
    #: where a sublayer's normalisation stands; ``none`` leaves it out, to see what it is for
    norm: Literal["post", "pre", "none"] = "post"
    #: a second one stands after every sublayer, before the sum (Gemma 2, arXiv:2408.00118)
    answer_norm: bool = False
    #: the first layer's attention has one too
    first_norm: bool = True
    #: the sum around every sublayer
    residual: bool = True
    #: every channel of a sublayer's answer is multiplied by a learned number before the sum (Touvron et al.,
    #: arXiv:2103.17239)
    layer_scale: bool = False
    embedding_norm: bool = True
    final_norm: bool = False
    cross_attention: bool = False
    #: the layers in turn use these many sets of weights (None: as many as layers; ALBERT: 1)
    layer_groups: int | None = None
    padding_id: int = 0
    #: inputs and outputs have the sequence before the batch, as PyTorch's own transformer modules do
    sequence_first: bool = False
    #: the mask token where its embeddings are left out and the others scaled to make up for it (ESM); None: kept
    dropped_id: int | None = None

    def __post_init__(self) -> None:
        for name in ("vocab", "hidden", "layers", "heads"):
            if getattr(self, name) < 1:
                raise PosexportError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.feedforward < 0:
            raise PosexportError(f"feedforward must be at least 0 (no feed-forward), got {self.feedforward}")
        if self.types < 0:
            raise PosexportError(f"types must be at least 0 (no token types), got {self.types}")
        for name in ("embedding", "head_width"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise PosexportError(f"{name} must be at least 1 (or none), got {getattr(self, name)}")
        if self.layer_groups is not None and not 1 <= self.layer_groups <= self.layers:
            raise PosexportError(f"layer_groups must be from 1 to layers={self.layers}, got {self.layer_groups}")
        if not 0 <= self.padding_id < self.vocab:
            raise PosexportError(f"padding_id must be from 0 to vocab - 1 = {self.vocab - 1}, got {self.padding_id}")
        if self.dropped_id is not None and not 0 <= self.dropped_id < self.vocab:
            raise PosexportError(f"dropped_id must be from 0 to vocab - 1 = {self.vocab - 1}, got {self.dropped_id}")
        if not 0 < self.embedding_scale < math.inf:
            raise PosexportError(f"embedding_scale must be a number above 0, got {self.embedding_scale}")
        if not 0 <= self.eps < 1:
            raise PosexportError(f"eps must be from 0 to below 1, got {self.eps}")
        if not self.norm_weight and self.norm_kind != "layer":
            raise PosexportError(f"norm_weight=false is for norm_kind=layer, got norm_kind={self.norm_kind}")
        if self.head_width is None and self.hidden % self.heads:
            raise PosexportError(f"hidden must be a multiple of heads, got hidden={self.hidden}, heads={self.heads}")

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.head_width or self.hidden // self.heads


def normalisation(config: EncoderConfig, width: int) -> nn.LayerNorm | RMSNorm:
    """The normalisation of vectors of size ``width`` that the configuration asks for."""
    if config.norm_kind == "rms":
        return RMSNorm(width, eps=config.eps, offset=config.norm_offset)
    return nn.LayerNorm(width, eps=config.eps, elementwise_affine=config.norm_weight, bias=config.norm_bias)


class Attention(nn.Module):
    """Multi-head attention of ``x_BTC`` to ``context_BSC``, with the encoding's rotation and terms."""

    def __init__(self, config: EncoderConfig, encoding: Encoding) -> None:
        super().__init__()
        if encoding.reads_input and config.heads * config.head_size != config.hidden:
            raise PosexportError(
                f"{encoding.name} reads the attention's input head by head, so a head must be hidden / heads wide; "
                f"got hidden={config.hidden}, heads={config.heads}, head_width={config.head_width}"
            )
        self.heads = config.heads
        self.scale = (config.head_size * encoding.score_terms) ** -0.5 if config.scaled else 1.0
        inner, bias = config.heads * config.head_size, config.attention_bias
        self.query = nn.Linear(config.hidden, inner, bias=bias)
        self.key = nn.Linear(config.hidden, inner, bias=bias and config.key_bias)
        self.value = nn.Linear(config.hidden, inner, bias=bias)
        self.output = nn.Linear(inner, config.hidden, bias=bias)
        self.scoring = scoring(config.score, config.heads, config.head_size)
        self.encoding = encoding

    def forward(
        self, x_BTC: Tensor, context_BSC: Tensor, mask_B11S: Tensor | None, queries: Positions, keys: Positions
    ) -> Tensor:
        q_BHTD, k_BHSD = self._queries_and_keys(x_BTC, context_BSC, queries, keys)
        read_BHTD = self._split(x_BTC) if self.encoding.reads_input else q_BHTD
        context_BHTD = attend(
            q_BHTD,
            k_BHSD,
            self._split(self.value(context_BSC)),
            scale=self.scale,
            mask=mask_B11S,
            scores=self.encoding.scores(read_BHTD, k_BHSD, queries, keys),
            values=self.encoding.values(queries, keys),
            base=self.scoring.base(k_BHSD, queries, keys),
        )
        out: Tensor = self.output(context_BHTD.transpose(1, 2).flatten(2))
        return out

    def _queries_and_keys(
        self, x_BTC: Tensor, context_BSC: Tensor, queries: Positions, keys: Positions
    ) -> tuple[Tensor, Tensor]:
        q_BHTD = self.encoding.rotate(self._split(self.query(x_BTC)), queries, "query")
        k_BHSD = self.encoding.rotate(self._split(self.key(context_BSC)), keys, "key")
        return self.scoring.queries(q_BHTD), k_BHSD

    def _split(self, x_BTC: Tensor) -> Tensor:
        heads: Tensor = x_BTC.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # type: ignore[no-untyped-call]
        return heads


class Residual(nn.Module):
    """Normalisation before (``pre``) or after (``post``) a sublayer, and the sum around it; either may be off."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.pre = config.norm == "pre"
        self.sums = config.residual
        self.norm = None if config.norm == "none" else normalisation(config, config.hidden)
        self.answer_norm = normalisation(config, config.hidden) if config.answer_norm else None
        self.layer_scale = nn.Parameter(torch.ones(config.hidden)) if config.layer_scale else None

    def before(self, x_BTC: Tensor) -> Tensor:
        """What the sublayer reads."""
        return x_BTC if self.norm is None or not self.pre else self.norm(x_BTC)

    def after(self, x_BTC: Tensor, y_BTC: Tensor) -> Tensor:
        """The sublayer's input ``x`` and its answer ``y``, joined."""
        if self.answer_norm is not None:
            y_BTC = self.answer_norm(y_BTC)
        if self.layer_scale is not None:
            y_BTC = self.layer_scale * y_BTC
        joined_BTC = x_BTC + y_BTC if self.sums else y_BTC
        return joined_BTC if self.norm is None or self.pre else self.norm(joined_BTC)


class FeedForward(nn.Module):
    """Two linear maps with an activation between, which a third may gate.

    The gated form is that of Shazeer, "GLU Variants Improve Transformer" (arXiv:2002.05202), equation 6.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        bias = config.feedforward_bias
        self.inner = nn.Linear(config.hidden, config.feedforward, bias=bias)
        self.gate = nn.Linear(config.hidden, config.feedforward, bias=bias) if config.gated else None
        self.activation = activation(config.activation)
        self.outer = nn.Linear(config.feedforward, config.hidden, bias=bias)

    def forward(self, x_BTC: Tensor) -> Tensor:
        active = self.activation(self.inner(x_BTC))
        out: Tensor = self.outer(active if self.gate is None else active * self.gate(x_BTC))
        return out


@dataclass(frozen=True)
class Memory:
    """What cross attention reads: another sequence's states, their additive mask and their positions."""

    states_BSC: Tensor
    mask_B11S: Tensor | None
    positions: Positions


class EncoderLayer(nn.Module):
    """Self-attention, cross attention if asked for, feed-forward."""

    def __init__(self, config: EncoderConfig, encoding: Encoding, index: int) -> None:
        super().__init__()
        self.attention = Attention(config, encoding.in_layer(index))
        self.attention_residual = Residual(config if config.first_norm or index else replace(config, norm="none"))
        if config.cross_attention:
            self.cross_attention = Attention(config, encoding.in_layer(index))
            self.cross_residual = Residual(config)
        self.feedforward = FeedForward(config) if config.feedforward else None
        self.feedforward_residual = Residual(config) if config.feedforward else None

    def forward(self, x_BTC: Tensor, mask_B11T: Tensor | None, positions: Positions, memory: Memory | None) -> Tensor:
        y_BTC = self.attention_residual.before(x_BTC)
        x_BTC = self.attention_residual.after(x_BTC, self.attention(y_BTC, y_BTC, mask_B11T, positions, positions))
        if memory is not None:
            y_BTC = self.cross_attention(
                self.cross_residual.before(x_BTC), memory.states_BSC, memory.mask_B11S, positions, memory.positions
            )
            x_BTC = self.cross_residual.after(x_BTC, y_BTC)
        if self.feedforward is None or self.feedforward_residual is None:
            return x_BTC
        y_BTC = self.feedforward(self.feedforward_residual.before(x_BTC))
        return self.feedforward_residual.after(x_BTC, y_BTC)


class Embeddings(nn.Module):
    """Token and type embeddings, positions (added or joined), normalisation, and the step to the model's width."""

    def __init__(self, config: EncoderConfig, encoding: Encoding | None, numbering: Numbering) -> None:
        super().__init__()
        width = config.embedding or config.hidden
        self.token = nn.Embedding(config.vocab, width)
        self.scale = config.embedding_scale
        self.dropped_id = config.dropped_id
        self.token_type = nn.Embedding(config.types, width) if config.types else None
        self.encoding = encoding
        self.numbering = numbering
        joined = width + (encoding.added_width if encoding else 0)
        self.norm = normalisation(config, joined) if config.embedding_norm else None
        self.project = nn.Linear(joined, config.hidden) if config.embedding or joined > width else None

    def forward(
        self, ids_BT: Tensor, types_BT: Tensor | None, mask_BT: Tensor | None = None
    ) -> tuple[Tensor, Positions]:
        x_BTC = self.token(ids_BT)
        if self.scale != 1:
            x_BTC = x_BTC * self.scale
        if self.dropped_id is not None:
            x_BTC = _without(x_BTC, ids_BT == self.dropped_id, mask_BT)
        if self.token_type is not None:
            x_BTC = x_BTC + (self.token_type.weight[0] if types_BT is None else self.token_type(types_BT))
        positions = self.numbering(ids_BT)
        if self.encoding is not None:
            x_BTC = self.encoding.embed(x_BTC, positions)
        if self.norm is not None:
            x_BTC = self.norm(x_BTC)
        return (x_BTC if self.project is None else self.project(x_BTC)), positions


class Encoder(nn.Module):
    """Embeddings and layers: token ids [B, T] to hidden states [B, T, C]."""

    def __init__(self, config: EncoderConfig, encoding: Encoding, numbering: Numbering | None = None) -> None:
        super().__init__()
        self.config = config
        # an encoding with parameters in every layer is a template here: a copy beside the layers' would be dead weight
        shared = None if encoding.per_layer else encoding
        self.embeddings = Embeddings(config, shared, numbering or Counted())
        groups = config.layer_groups or config.layers
        self.groups = nn.ModuleList(EncoderLayer(config, encoding, index) for index in range(groups))
        self.final_norm = normalisation(config, config.hidden) if config.final_norm else None

    @property
    def encodings(self) -> list[Encoding]:
        """The encoding of every layer: one and the same where all share it."""
        return [layer.attention.encoding for layer in self.groups if isinstance(layer, EncoderLayer)]

    @property
    def encoding(self) -> Encoding:
        """The encoding of the first layer: the model's own where all layers share it."""
        return self.encodings[0]

    def forward(
        self,
        ids_BT: Tensor,
        mask_BT: Tensor | None = None,
        types_BT: Tensor | None = None,
        memory_BSC: Tensor | None = None,
        memory_mask_BS: Tensor | None = None,
    ) -> Tensor:
        x_BTC: Tensor
        x_BTC, positions = self.embeddings(ids_BT, types_BT, mask_BT)
        mask_B11T = additive(mask_BT, x_BTC)
        memory = None
        if memory_BSC is not None:
            counted = Positions.counted(memory_BSC.shape[1], memory_BSC.device)
            memory = Memory(memory_BSC, additive(memory_mask_BS, x_BTC), counted)
        for index in range(self.config.layers):
            group = self.groups[index * len(self.groups) // self.config.layers]
            x_BTC = group(x_BTC, mask_B11T, positions, memory)
        if self.final_norm is not None:
            x_BTC = self.final_norm(x_BTC)
        return x_BTC


def _without(x_BTC: Tensor, dropped_BT: Tensor, mask_BT: Tensor | None) -> Tensor:
    """Embeddings without the dropped tokens', scaled as ESM does.

    It was trained with 12 % of the tokens dropped, and the rest is scaled to what they would be then: by 0.88 over the
    share of real tokens that is left (Rives et al. 2021, released code). Where none is left all is zero.
    """
    wide = torch.promote_types(x_BTC.dtype, torch.float32)
    real_BT = torch.ones_like(dropped_BT) if mask_BT is None else mask_BT != 0
    total_B = real_BT.sum(1)
    left_B = total_B - (real_BT & dropped_BT).sum(1)
    scale_B = 0.88 * total_B.to(wide) / left_B.clamp(min=1).to(wide)
    kept_BTC = torch.where(dropped_BT[:, :, None], torch.zeros((), dtype=wide, device=x_BTC.device), x_BTC.to(wide))
    return (kept_BTC * scale_B[:, None, None]).to(x_BTC.dtype)
