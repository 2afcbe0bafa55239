"""A decoder with its head and cache, called with the inputs' public names."""

from collections.abc import Sequence

import msgspec
from torch import Tensor

from posexport.encodings.encoding import Encoding
from posexport.models.decoder import Decoder, LanguageModel
from posexport.models.definition import Definition
from posexport.models.envelope import envelope_of, reads_numbers, together
from posexport.spec import BATCH, SEQUENCE, TOTAL, Axis, InputSpec, LengthContract, OutputSpec, ProofPlan


class DecoderModel(Definition):
    """New tokens and the cache of the ones before, to logits (or hidden states) and the cache of all.

    One graph reads a prompt (an empty past), a part of one, or one token.
    """

    ordered = True
    causal = True

    def __init__(self, decoder: Decoder, head: LanguageModel | None) -> None:
        super().__init__()
        self.decoder = decoder
        self.head = head

    @property
    def encoding(self) -> Encoding:
        """The encoding of the first layer."""
        return self.decoder.encodings[0]

    @property
    def encodings(self) -> list[Encoding]:
        """Those of all layers."""
        return self.decoder.encodings

    @property
    def shift_invariant(self) -> bool:
        """Tokens are numbered by the mask: padding on the left moves none."""
        return True

    @property
    def padding_invariant(self) -> bool:
        """Padding on the right changes nothing in any layer."""
        return all(encoding.padding_invariant for encoding in self.decoder.encodings)

    @property
    def envelope(self) -> LengthContract:
        """What the encodings of all layers allow together; a limit is about past and new tokens together."""
        return msgspec.structs.replace(
            together([envelope_of(encoding) for encoding in self.decoder.encodings]),
            cached=True,
            length_dependent=any(encoding.length_dependent for encoding in self.decoder.encodings),
        )

    @property
    def plan(self) -> ProofPlan:
        """Sizes to trace at, for the cache."""
        return ProofPlan(traced=self.decoder.caching.cache.traced)

    @property
    def _numbered(self) -> bool:
        """Whether anything reads the numbers of tokens, beside distances between them."""
        return any(reads_numbers(encoding) for encoding in self.decoder.encodings)

    def _of_layers(self, name: str) -> list[str]:
        return [f"{name}.{i}.{what}" for i in range(self.decoder.config.layers) for what in ("key", "value")]

    def _cache_axes(self, length: str) -> list[Axis]:
        config = self.decoder.config
        return [BATCH, config.kv_heads or config.heads, length, config.head_size]

    @property
    def inputs(self) -> list[InputSpec]:
        """Ids of the new tokens, the mask of past and new ones, the past's cache, positions where they matter."""
        config = self.decoder.config
        ids = InputSpec(
            name="input_ids",
            dtype="int64",
            axes=[BATCH, SEQUENCE],
            role="tokens",
            size=config.vocab,
            padding=config.padding_id,
        )
        mask = InputSpec(name="attention_mask", dtype="int64", axes=[BATCH, TOTAL], role="mask")
        numbers = InputSpec(
            name="position_ids",
            dtype="int64",
            axes=[BATCH, SEQUENCE],
            role="positions",
            size=self.envelope.limit,
            default=-1,
        )
        axes = self._cache_axes(self.decoder.caching.cache.past_axis)
        names = self._of_layers("past_key_values")
        past = [InputSpec(name=n, dtype="float32", axes=axes, role="cache") for n in names]
        return [ids, mask, *past, *([numbers] if self._numbered else [])]

    @property
    def outputs(self) -> list[OutputSpec]:
        """Logits over the vocabulary, or hidden states; keys and values of all tokens."""
        config = self.decoder.config
        found = OutputSpec(name="logits", axes=[BATCH, SEQUENCE, config.vocab])
        if self.head is None:
            found = OutputSpec(name="last_hidden_state", axes=[BATCH, SEQUENCE, self.decoder.width])
        names = self._of_layers("present")
        axes = self._cache_axes(self.decoder.caching.cache.present_axis)
        return [found, *(OutputSpec(name=name, axes=axes) for name in names)]

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Sequence[Tensor] = (),
        position_ids: Tensor | None = None,
        **named: Tensor,
    ) -> tuple[Tensor, ...]:
        """``past_key_values``: keys and values of every layer in turn; ``named``: the same, by the inputs' names."""
        held = [*past_key_values, *named.values()]
        past = list(zip(held[::2], held[1::2], strict=True)) or None
        x_BTC, present = self.decoder(input_ids, attention_mask, past, positions_BT=position_ids)
        out = x_BTC if self.head is None else self.head(x_BTC)
        return (out, *(tensor for pair in present for tensor in pair))
