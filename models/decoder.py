"""A decoder of the GPT and Llama families, with any position encoding.

Radford et al. (2018, 2019); Touvron et al., "LLaMA" (arXiv:2302.13971). Tokens are numbered by the mask, so that
padding on either side moves no token.

Shape letters: B batch, T new tokens, S past and new tokens, C model size.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor, nn

from posexport.base.options.check import Positive
from posexport.base.spec import BATCH, SEQUENCE, InputSpec
from posexport.encodings.encoding import Encoding
from posexport.models.cached_decoder import CachedDecoder, CacheTensors, Decoding, answer_output, token_input
from posexport.models.decoder_layer import DecoderLayer, DecoderLayerConfig
from posexport.models.definition import limits_of, reads_numbers, together
from posexport.models.embeddings import EmbeddingConfig
from posexport.models.layer import TransformerConfig
from posexport.nn.attention import additive
from posexport.nn.caching import Caching, KeysAndValues, Reach
from posexport.nn.collected import reached
from posexport.nn.config import Config, named
from posexport.nn.feed_forward import activation
from posexport.nn.norms import normalisation


@dataclass(frozen=True, kw_only=True)
class LanguageModelConfig(Config):
    """Configuration of the head that computes logits."""

    #: the token embeddings are the head's weights too
    tied: bool = True
    bias: bool = named("head_bias", False)
    #: hidden states are multiplied by this before the head (T5, released code)
    scale: Positive = named("head_scale", 1.0)
    #: logits stay below this (Gemma 2, arXiv:2408.00118, section 2)
    cap: Positive | None = named("logit_cap", None)


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
        return self.layer.attention.kv_heads or self.heads


@dataclass(frozen=True)
class Crossed:
    """Cross attention's inputs from an encoder: keys and values of every layer, and the mask of its tokens."""

    kept: Sequence[KeysAndValues]
    mask_B11S: Tensor | None


class Decoder(nn.Module):
    """Embeddings and layers: token ids [B, T] to hidden states [B, T, C].

    Not ``causal``: tokens see later ones too, so that nothing can be cached (EmbeddingGemma).
    """

    def __init__(self, config: DecoderConfig, encoding: Encoding, *, causal: bool = True) -> None:
        super().__init__()
        self.config = config
        self.causal = causal
        #: how past tokens are kept; `posexport.sources.prepare` changes it
        self.caching = Caching()
        width, norm = config.embedding.width or config.hidden, config.layer.norm
        self.token = nn.Embedding(config.vocab, width)
        # with separate parameters in every layer the encoding is only a template: a copy here would be unused weight
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
        self.layers = nn.ModuleList(
            DecoderLayer(config.layer, encoding.in_layer(i), causal=causal) for i in range(config.layers)
        )
        self.final_norm = normalisation(norm, config.hidden) if config.final_norm else None

    @property
    def width(self) -> int:
        """Channels of the hidden states."""
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
        whole_BS = self.caching.cache.mask(ids_BT, mask_BS, past)
        at = Reach.by_mask(whole_BS, ids_BT.shape[1], self.caching, positions_BT)
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
        # what drops no key is no mask: a graph would have a branch for it that nothing reaches
        mask_B11S = None if mask_BS is None else additive(whole_BS, x_BTC)
        present = []
        for index, layer in enumerate(self.layers):
            reached(index, x_BTC)
            crossed = () if memory is None else (memory.kept[index], memory.mask_B11S)
            x_BTC, layer_cache = layer(x_BTC, mask_B11S, at, None if past is None else past[index], *crossed)
            present.append(layer_cache)
        if self.final_norm is not None:
            x_BTC = self.final_norm(x_BTC)
        if self.project_out is not None:
            x_BTC = self.project_out(x_BTC)
        reached(len(self.layers), x_BTC)
        return x_BTC, present


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


class PredictionHead(LanguageModel):
    """Logits after a projection, an activation and a normalisation, as in BERT's fill-mask head."""

    def __init__(self, config: DecoderConfig, token: nn.Embedding) -> None:
        super().__init__(config, token)
        self.dense = nn.Linear(config.hidden, config.hidden)
        self.activation = activation(config.layer.feedforward.activation)
        self.norm = normalisation(config.layer.norm, config.hidden)

    def forward(self, x_BTC: Tensor) -> Tensor:
        return super().forward(self.norm(self.activation(self.dense(x_BTC))))


class DecoderModel(CachedDecoder):
    """A decoder with its head: logits, or hidden states without one."""

    def __init__(self, decoder: Decoder, head: LanguageModel | None) -> None:
        super().__init__()
        self.decoder = decoder
        self.head = head

    @property
    def caching(self) -> Caching:
        return self.decoder.caching

    @property
    def encodings(self) -> list[Encoding]:
        return self.decoder.encodings

    @property
    def decoding(self) -> Decoding:
        config = self.decoder.config
        lengths = together([limits_of(encoding) for encoding in self.encodings])
        positions = InputSpec(
            name="position_ids",
            dtype="int64",
            axes=[BATCH, SEQUENCE],
            role="positions",
            size=lengths.max_length,
            default=-1,
        )
        return Decoding(
            tokens=token_input(config.vocab, config.padding_id),
            position_ids=positions if any(reads_numbers(encoding) for encoding in self.encodings) else None,
            answer=answer_output(config.vocab, self.decoder.width if self.head is None else None),
            cache=CacheTensors([(config.kv_heads, config.head_size)] * config.layers),
            encodings=self.encodings,
            lengths=lengths,
        )

    def decode(
        self, ids_BT: Tensor, mask_BS: Tensor | None, past: Sequence[KeysAndValues] | None, positions_BT: Tensor | None
    ) -> tuple[Tensor, list[KeysAndValues]]:
        """Logits or hidden states, and every layer's keys and values."""
        x_BTC, present = self.decoder(ids_BT, mask_BS, past, positions_BT=positions_BT)
        return (x_BTC if self.head is None else self.head(x_BTC)), present
