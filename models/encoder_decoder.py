"""An encoder-decoder of the T5, BART and Whisper families, with any position encoding in both halves.

Raffel et al., "T5" (arXiv:1910.10683); Lewis et al., "BART" (arXiv:1910.13461). The decoder attends to the encoder's
states without positions, by keys and values that are computed once.

The whole is the definition; it is exported in two parts, so that a step never touches the encoder:
``encoder_model.onnx`` (the encoder, and the keys and values of its states in every layer of the decoder) and
``decoder_model.onnx`` (new tokens behind any cache: one graph for a prompt and for steps). Files and tensors are named
as optimum names them.

``encoder`` is an `Encoder` of token ids, or any module that is a `Side`: it says its ``inputs``, ``states_axis``
(`ENCODER_SEQUENCE`, or how many states it always gives), its ``encodings`` and the ``envelopes`` that bound its inputs
(none where their size is fixed), and its ``forward`` takes these inputs by name and gives states [B, S, C]. Of its
inputs, that of role ``mask`` over [batch, states_axis], if there is one, says which states count. Whisper's has
``input_features`` [batch, mel bins, 3000] alone and ``states_axis`` 1500.

Shape letters: B batch, T new tokens of the decoder, S the encoder's states, C model size.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec
from torch import Tensor, nn

from posexport.encodings.encoding import Encoding
from posexport.models.decoder import Crossed, Decoder, LanguageModel
from posexport.models.definition import Definition, Part
from posexport.models.encoder import Encoder, additive
from posexport.models.envelope import envelope_of, together
from posexport.nn.caching import KeysAndValues
from posexport.spec import (
    BATCH,
    ENCODER_SEQUENCE,
    SEQUENCE,
    TOTAL,
    Axis,
    InputSpec,
    LengthContract,
    OutputSpec,
    PartSpec,
    ProofPlan,
)

ENCODER_FILE, DECODER_FILE = "encoder_model.onnx", "decoder_model.onnx"
#: the encoder's states, as its part and as the whole calls them
_STATES, _WHOLE_STATES = "last_hidden_state", "encoder_last_hidden_state"
#: the mask of the encoder's states, as the decoder's part calls it
_STATES_MASK = "encoder_attention_mask"


class Side(Protocol):
    """How the encoder is read; see the file's docstring."""

    @property
    def inputs(self) -> list[InputSpec]:
        """The inputs, in order."""

    @property
    def states_axis(self) -> Axis:
        """The axis of the states, or their number."""

    @property
    def encodings(self) -> list[Encoding]:
        """Those of the layers, the first one the encoder's own."""

    @property
    def envelopes(self) -> list[LengthContract]:
        """What bounds its inputs."""

    def __call__(self, **inputs: Tensor) -> Tensor:
        """The states, [B, S, C]."""


class _Text:
    """An encoder of token ids."""

    states_axis: Axis = ENCODER_SEQUENCE

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder

    @property
    def inputs(self) -> list[InputSpec]:
        config, axes = self.encoder.config, [BATCH, ENCODER_SEQUENCE]
        size, padding = config.vocab, config.padding_id
        return [
            InputSpec(name="input_ids", dtype="int64", axes=[*axes], role="tokens", size=size, padding=padding),
            InputSpec(name="attention_mask", dtype="int64", axes=[*axes], role="mask"),
        ]

    @property
    def encodings(self) -> list[Encoding]:
        return self.encoder.encodings

    @property
    def envelopes(self) -> list[LengthContract]:
        return [envelope_of(encoding, self.encoder.embeddings.numbering) for encoding in self.encodings]

    def __call__(self, **inputs: Tensor) -> Tensor:
        states_BSC: Tensor = self.encoder(inputs["input_ids"], inputs.get("attention_mask"))
        return states_BSC


def side_of(encoder: Encoder | Side) -> Side:
    """The encoder, as it is read."""
    return _Text(encoder) if isinstance(encoder, Encoder) else encoder


class EncoderDecoderModel(Definition):
    """The encoder's inputs and the decoder's new tokens with the cache of the ones before, to ``logits`` and caches.

    ``shared``: the decoder reads the embeddings of an encoder of token ids. Without ``head`` it gives hidden states.
    """

    ordered = True
    causal = True

    def __init__(
        self, encoder: Encoder | Side, decoder: Decoder, head: LanguageModel | None, *, shared: bool = True
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.head = head
        if isinstance(encoder, Encoder):
            self.overhead = encoder.embeddings.numbering.overhead
            if shared:
                decoder.token.weight = encoder.embeddings.token.weight

    @property
    def side(self) -> Side:
        """The encoder, as it is read."""
        return side_of(self.encoder)

    @property
    def encoding(self) -> Encoding:
        """The encoding of the encoder's first layer."""
        return self.side.encodings[0]

    @property
    def shift_invariant(self) -> bool:
        """As the encoder's, where its inputs can be shifted: the decoder numbers its tokens by the mask."""
        return all(encoding.shift_invariant for encoding in self._padded())

    @property
    def padding_invariant(self) -> bool:
        """Padding on the right changes nothing in any layer."""
        return all(encoding.padding_invariant for encoding in [*self._padded(), *self.decoder.encodings])

    @property
    def reused(self) -> list[nn.Module]:
        """The encoder: every call of the decoder for a text reads the same states."""
        return [self.encoder] if isinstance(self.encoder, nn.Module) else []

    @property
    def envelope(self) -> LengthContract:
        """What both halves allow: one limit, for the encoder's tokens and for past and new tokens of the decoder."""
        side, decoder = self.side, self.decoder
        envelope = together([*side.envelopes, *(envelope_of(encoding) for encoding in decoder.encodings)])
        far = [side.states_axis] if isinstance(side.states_axis, str) else []
        return msgspec.structs.replace(
            envelope,
            limited_axes=[SEQUENCE, *far],
            cached=True,
            length_dependent=any(encoding.length_dependent for encoding in decoder.encodings),
        )

    @property
    def plan(self) -> ProofPlan:
        """Sizes to trace at, for the cache and for the encoder's tokens."""
        return ProofPlan(traced={**self.decoder.caching.cache.traced, ENCODER_SEQUENCE: 13})

    @property
    def inputs(self) -> list[InputSpec]:
        """The encoder's; ids of new tokens of the decoder, the mask of past and new ones, the past's cache."""
        return [*self.side.inputs, *self._tokens("decoder_"), *self._past()]

    @property
    def outputs(self) -> list[OutputSpec]:
        """Logits or hidden states, the decoder's cache, and what the encoder gave: keys and values, states."""
        states = msgspec.structs.replace(self._states(), name=_WHOLE_STATES)
        return [*self._answers(), *self._crossed("present"), states]

    @property
    def parts(self) -> list[Part]:
        """The encoder, then the decoder."""
        crossed = self._crossed("present")
        encoder = PartSpec(
            file=ENCODER_FILE,
            inputs=self.side.inputs,
            outputs=[self._states(), *crossed],
            feeds={spec.name: spec.name for spec in self.side.inputs},
            gives={_STATES: _WHOLE_STATES, **{spec.name: spec.name for spec in crossed}},
        )
        mask = self._states_mask()
        masks = [] if mask is None else [msgspec.structs.replace(mask, name=_STATES_MASK)]
        own, answers = self._tokens(""), self._answers()
        kept = [
            InputSpec(name=spec.name, dtype="float32", axes=spec.axes, role="values")
            for spec in self._crossed("past_key_values")
        ]
        feeds = {spec.name: f"decoder_{spec.name}" for spec in own}
        feeds |= {} if mask is None else {_STATES_MASK: mask.name}
        feeds |= {spec.name: spec.name for spec in self._past()}
        feeds |= {to.name: given.name for to, given in zip(kept, crossed, strict=True)}
        decoder = PartSpec(
            file=DECODER_FILE,
            inputs=[*own, *masks, *self._past(), *kept],
            outputs=answers,
            feeds=feeds,
            gives={spec.name: spec.name for spec in answers},
        )
        return [Part(encoder, _EncoderPart(self)), Part(decoder, _DecoderPart(self))]

    def forward(self, **inputs: Tensor) -> tuple[Tensor, ...]:
        side = self.side
        read = {spec.name: inputs[spec.name] for spec in side.inputs if spec.name in inputs}
        past = [inputs[spec.name] for spec in self._past() if spec.name in inputs]
        states_BSC, *crossed = encode(side, self.decoder, read)
        mask = self._states_mask()
        answers = decode(
            self.decoder,
            self.head,
            inputs["decoder_input_ids"],
            inputs.get("decoder_attention_mask"),
            None if mask is None else inputs.get(mask.name),
            past,
            crossed,
        )
        return (*answers, *crossed, states_BSC)

    def _padded(self) -> list[Encoding]:
        """The encoder's, where its inputs differ in length."""
        return [] if isinstance(self.side.states_axis, int) else self.side.encodings

    def _states_mask(self) -> InputSpec | None:
        axes = [BATCH, self.side.states_axis]
        return next((spec for spec in self.side.inputs if spec.role == "mask" and spec.axes == axes), None)

    def _tokens(self, prefix: str) -> list[InputSpec]:
        config = self.decoder.config
        return [
            InputSpec(
                name=f"{prefix}input_ids",
                dtype="int64",
                axes=[BATCH, SEQUENCE],
                role="tokens",
                size=config.vocab,
                padding=config.padding_id,
            ),
            InputSpec(name=f"{prefix}attention_mask", dtype="int64", axes=[BATCH, TOTAL], role="mask"),
        ]

    def _of_layers(self, name: str, half: str) -> list[str]:
        return [f"{name}.{i}.{half}.{what}" for i in range(self.decoder.config.layers) for what in ("key", "value")]

    def _cache_axes(self, length: str) -> list[Axis]:
        config = self.decoder.config
        return [BATCH, config.kv_heads or config.heads, length, config.head_size]

    def _past(self) -> list[InputSpec]:
        axes = self._cache_axes(self.decoder.caching.cache.past_axis)
        names = self._of_layers("past_key_values", "decoder")
        return [InputSpec(name=name, dtype="float32", axes=axes, role="cache") for name in names]

    def _answers(self) -> list[OutputSpec]:
        """What the decoder gives."""
        config = self.decoder.config
        found = OutputSpec(name="logits", axes=[BATCH, SEQUENCE, config.vocab])
        if self.head is None:
            found = OutputSpec(name="last_hidden_state", axes=[BATCH, SEQUENCE, self.decoder.width])
        axes = self._cache_axes(self.decoder.caching.cache.present_axis)
        return [found, *(OutputSpec(name=name, axes=axes) for name in self._of_layers("present", "decoder"))]

    def _crossed(self, name: str) -> list[OutputSpec]:
        """Keys and values of the encoder's states, in every layer of the decoder."""
        config = self.decoder.config
        axes: list[Axis] = [BATCH, config.heads, self.side.states_axis, config.head_size]
        return [OutputSpec(name=one, axes=axes) for one in self._of_layers(name, "encoder")]

    def _states(self) -> OutputSpec:
        return OutputSpec(name=_STATES, axes=[BATCH, self.side.states_axis, self.decoder.config.hidden])


class _EncoderPart(nn.Module):
    """The encoder's inputs to its states, and their keys and values in every layer of the decoder."""

    def __init__(self, whole: EncoderDecoderModel) -> None:
        super().__init__()
        self.encoder, self.decoder = whole.encoder, whole.decoder

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        input_features: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """By the names that sides have; only those that are given are passed on."""
        named = {"input_ids": input_ids, "attention_mask": attention_mask, "input_features": input_features}
        given = {name: value for name, value in named.items() if value is not None}
        return encode(side_of(self.encoder), self.decoder, given)


class _DecoderPart(nn.Module):
    """New tokens with the caches of both attentions to logits (or hidden states) and the cache of all."""

    def __init__(self, whole: EncoderDecoderModel) -> None:
        super().__init__()
        self.decoder, self.head = whole.decoder, whole.head

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        past_key_values: Sequence[Tensor] = (),
        **named: Tensor,
    ) -> tuple[Tensor, ...]:
        """``past_key_values``: the decoder's own, then those of the encoder's states; ``named``: the same, by names."""
        held = [*past_key_values, *named.values()]
        half = len(held) // 2
        return decode(
            self.decoder, self.head, input_ids, attention_mask, encoder_attention_mask, held[:half], held[half:]
        )


def encode(side: Side, decoder: Decoder, inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
    """The encoder's states, then their keys and values, layer by layer."""
    states_BSC = side(**inputs)
    return (states_BSC, *(tensor for pair in decoder.crossed(states_BSC) for tensor in pair))


def decode(
    decoder: Decoder,
    head: LanguageModel | None,
    ids_BT: Tensor,
    mask_BS: Tensor | None,
    states_mask_BS: Tensor | None,
    past: Sequence[Tensor],
    crossed: Sequence[Tensor],
) -> tuple[Tensor, ...]:
    """Logits (or hidden states), then keys and values of past and new tokens, layer by layer."""
    like = crossed[0]
    memory = Crossed(_pairs(crossed), additive(states_mask_BS, like))
    x_BTC, present = decoder(ids_BT, mask_BS, _pairs(past) or None, memory)
    return (x_BTC if head is None else head(x_BTC), *(tensor for pair in present for tensor in pair))


def _pairs(tensors: Sequence[Tensor]) -> list[KeysAndValues]:
    return list(zip(tensors[::2], tensors[1::2], strict=True))
