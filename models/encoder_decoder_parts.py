"""The graphs that an encoder-decoder is exported as, and the tensors that they hand to one another.

posexport's encoder computes the keys and values that cross attention reads, once, and its decoder takes them as
inputs. optimum and transformers.js hand the encoder's states to the decoder instead, which computes keys and values in
its first call and takes them back in later ones.

Shape letters: B batch, T new tokens of the decoder, S the encoder's states, P states with keys and values in the cache
(none or all), C model size, H heads, D head size.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec
from torch import Tensor, nn

from posexport.base.spec import (
    BATCH,
    ENCODER_PAST,
    ENCODER_STATES,
    SEQUENCE,
    STATES_MASK,
    InputSpec,
    OutputSpec,
    PartSpec,
)
from posexport.base.targets.dtypes import MODEL_DTYPE
from posexport.graph.ops.cache import after_held, not_held
from posexport.models.cached_decoder import CacheTensors, answer_output, flat, mask_input, pairs, token_input
from posexport.models.decoder import Crossed
from posexport.models.definition import Part
from posexport.models.encoder import Encoder
from posexport.models.sides import Half, Side, encoded, side_of
from posexport.nn.attention import additive
from posexport.nn.calling import carrying
from posexport.nn.collected import Collected, LayerOutput

ENCODER_FILE, DECODER_FILE = "encoder_model.onnx", "decoder_model.onnx"

#: where a decoder has keys and values of the encoder's states from: inputs, the states, or the states if no inputs
CrossSource = Literal["held", "states", "both"]


class Wiring:
    """Inputs and outputs of an encoder-decoder, and the parts that it can be cut into."""

    def __init__(
        self,
        encoder: Encoder | Side,
        decoder: Half,
        head: nn.Module | None,
        layer_outputs: Sequence[LayerOutput] = (),
    ) -> None:
        self.encoder, self.decoder, self.head = encoder, decoder, head
        self.layer_outputs = layer_outputs
        side, config, cache = side_of(encoder), decoder.config, decoder.caching.cache
        rounds = decoder.caching.rounds
        decoder_cache = CacheTensors([(config.kv_heads, config.head_size)] * config.layers, prefix="decoder.")
        cross = CacheTensors([(config.heads, config.head_size)] * config.layers, prefix="encoder.")
        axis = side.states_axis
        self.side_inputs = side.inputs
        #: the mask of the encoder's states
        self.mask = next((s for s in side.inputs if s.role == "mask" and s.axes == [BATCH, axis]), None)
        #: the same as an output of an encoder that makes it
        self.made_mask = [OutputSpec(name=STATES_MASK, axes=[BATCH, axis])] if side.makes_mask else []
        if side.makes_mask:
            self.mask = InputSpec(name=STATES_MASK, dtype="int64", axes=[BATCH, axis], role="mask")
        self.states = OutputSpec(name="last_hidden_state", axes=[BATCH, axis, config.hidden])
        self.whole_states = OutputSpec(name="encoder_last_hidden_state", axes=self.states.axes)
        self.states_input = InputSpec(name=ENCODER_STATES, dtype=MODEL_DTYPE.name, axes=self.states.axes, role="values")
        self.own_tokens = [token_input(config.vocab, config.padding_id), mask_input()]
        masks = [] if self.mask is None else [msgspec.structs.replace(self.mask, name=STATES_MASK)]
        #: new tokens, and the masks
        self.tokens = [*self.own_tokens, *masks]
        self.past = decoder_cache.inputs("past_key_values", cache.past_axis, rounds=rounds)
        self.held = [msgspec.structs.replace(s, role="values") for s in cross.inputs("past_key_values", axis)]
        #: keys and values of the encoder's states, in every layer of the decoder
        self.crossed = cross.outputs("present", axis)
        answer = answer_output(config.vocab, decoder.width if head is None else None)
        self.answers = [answer, *decoder_cache.outputs("present", cache.present_axis, rounds=rounds)]
        #: cross attention's probabilities [B, H, T, S], or [B, T, S] of one head
        self.of_layers = [
            OutputSpec(name=one.name, axes=[BATCH, *([config.heads] if one.head is None else []), SEQUENCE, axis])
            for one in layer_outputs
        ]

    @property
    def parts(self) -> list[Part]:
        """The encoder with keys and values for the decoder, then the decoder."""
        outputs = [self.states, *self.made_mask, *self.crossed]
        encoder = EncoderPart(self.encoder, self.decoder)
        decoder = self._decoder("held", by_layer=False)
        inputs = [*self.tokens, *self.past, *self.held]
        return [
            self._part(
                encoder, ENCODER_FILE, self.side_inputs, outputs, input_names={s.name: s.name for s in self.side_inputs}
            ),
            self._part(decoder, DECODER_FILE, inputs, [*self.answers, *self.of_layers]),
        ]

    def encoder_alone(self, file: str) -> Part:
        """The encoder's inputs to its states."""
        return self._encoder(None, file, [self.states, *self.made_mask])

    def first(self, file: str) -> Part:
        """New tokens and the states to logits and both caches, where there is no past."""
        inputs, outputs = [*self.tokens, self.states_input], [*self.answers, *self.crossed, *self.of_layers]
        return self._part(self._decoder("states"), file, inputs, outputs, when="first")

    def later(self, file: str) -> Part:
        """New tokens and both caches to logits and the cache of the decoder's self-attention."""
        inputs, outputs = [*self.tokens, *_by_layer(self.past, self.held)], [*self.answers, *self.of_layers]
        return self._part(self._decoder("held"), file, inputs, outputs, when="later")

    def merged(self, file: str) -> list[Part]:
        """One graph for both: new tokens, states and both caches to logits and both caches; its mask has a default."""
        tokens = [
            msgspec.structs.replace(spec, default=1) if spec.name == "attention_mask" else spec for spec in self.tokens
        ]
        held = [
            msgspec.structs.replace(spec, role="cache", axes=[*spec.axes[:2], ENCODER_PAST, spec.axes[3]])
            for spec in self.held
        ]
        fixed, outputs = [*tokens, self.states_input], [*self.answers, *self.crossed, *self.of_layers]
        inputs = [*fixed, *_by_layer(self.past, held)]
        module = self._decoder("both")
        first = self._part(
            module, file, inputs, outputs, input_names=self._input_names([*fixed, *self.past]), when="first"
        )
        later = msgspec.structs.replace(
            first.spec,
            input_names=self._input_names(inputs),
            output_names=self._output_names([*self.answers, *self.of_layers]),
            when="later",
        )
        return [first, Part(later, module)]

    def _encoder(self, decoder: Half | None, file: str, outputs: list[OutputSpec]) -> Part:
        module, input_names = EncoderPart(self.encoder, decoder), {spec.name: spec.name for spec in self.side_inputs}
        return self._part(module, file, self.side_inputs, outputs, input_names=input_names)

    def _decoder(self, crossed: CrossSource, *, by_layer: bool = True) -> "DecoderPart":
        return DecoderPart(self.decoder, self.head, crossed, by_layer=by_layer, layer_outputs=self.layer_outputs)

    def _part(
        self,
        module: nn.Module,
        file: str,
        inputs: list[InputSpec],
        outputs: list[OutputSpec],
        *,
        input_names: dict[str, str] | None = None,
        when: Literal["always", "first", "later"] = "always",
    ) -> Part:
        spec = PartSpec(
            file=file,
            inputs=inputs,
            outputs=outputs,
            input_names=input_names or self._input_names(inputs),
            output_names=self._output_names(outputs),
            when=when,
        )
        return Part(spec, module)

    def _input_names(self, inputs: Sequence[InputSpec]) -> dict[str, str]:
        """What each input of a decoder gets: an input of the whole or an output of the encoder."""
        known = {spec.name: f"decoder_{spec.name}" for spec in self.own_tokens}
        known |= {} if self.mask is None else {STATES_MASK: self.mask.name}
        known |= {spec.name: spec.name for spec in self.past} | {ENCODER_STATES: self.whole_states.name}
        known |= {held.name: crossed.name for held, crossed in zip(self.held, self.crossed, strict=True)}
        return {spec.name: known[spec.name] for spec in inputs}

    def _output_names(self, outputs: Sequence[OutputSpec]) -> dict[str, str]:
        renamed = {self.states.name: self.whole_states.name} if self.states in outputs else {}
        return {spec.name: renamed.get(spec.name, spec.name) for spec in outputs}


class EncoderPart(nn.Module):
    """The encoder's inputs to its states (and mask), and with ``decoder`` keys and values in every layer of it."""

    def __init__(self, encoder: Encoder | Side, decoder: Half | None) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        input_features: Tensor | None = None,
        pixel_values: Tensor | None = None,
        input_values: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """By the names that encoders have; only those that are not None are passed on."""
        named = {"input_ids": input_ids, "attention_mask": attention_mask}
        named |= {"input_features": input_features, "pixel_values": pixel_values, "input_values": input_values}
        given = {name: value for name, value in named.items() if value is not None}
        states_BSC, *mask = encoded(side_of(self.encoder), given)
        return (states_BSC, *mask, *(() if self.decoder is None else flat(self.decoder.crossed(states_BSC))))


class DecoderPart(nn.Module):
    """New tokens and the caches of both attentions to logits (or hidden states) and the caches.

    ``past_key_values``: keys and values of self-attention, then of the encoder's states where they are inputs;
    or, ``by_layer``, both of every layer in turn. ``named``: the same, by the inputs' names.
    """

    def __init__(
        self,
        decoder: Half,
        head: nn.Module | None,
        crossed: CrossSource,
        *,
        by_layer: bool,
        layer_outputs: Sequence[LayerOutput] = (),
    ) -> None:
        super().__init__()
        self.decoder, self.head = decoder, head
        self.crossed, self.by_layer, self.layer_outputs = crossed, by_layer, layer_outputs

    def forward(
        self,
        input_ids: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        past_key_values: Sequence[Tensor] = (),
        **named: Tensor,
    ) -> tuple[Tensor, ...]:
        tensors: Sequence[Tensor] = [*past_key_values, *named.values()]
        crossed: Sequence[Tensor] = []
        if self.crossed != "states":
            tensors, crossed = self._apart(tensors)
        if encoder_hidden_states is not None:
            crossed = completed(self.decoder, encoder_hidden_states, crossed)
        masks = (attention_mask, encoder_attention_mask)
        answers, of_layers = decode(self.decoder, self.head, input_ids, *masks, tensors, crossed, self.layer_outputs)
        return (*answers, *of_layers) if self.crossed == "held" else (*answers, *crossed, *of_layers)

    def _apart(self, held: Sequence[Tensor]) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """Keys and values of self-attention, and of the encoder's states."""
        if not self.by_layer:
            return held[: len(held) // 2], held[len(held) // 2 :]
        layers = [held[start : start + 4] for start in range(0, len(held), 4)]
        return [x for layer in layers for x in layer[:2]], [x for layer in layers for x in layer[2:]]


def decode(
    decoder: Half,
    head: nn.Module | None,
    ids_BT: Tensor,
    mask_BS: Tensor | None,
    states_mask_BS: Tensor | None,
    past: Sequence[Tensor],
    crossed: Sequence[Tensor],
    layer_outputs: Sequence[LayerOutput] = (),
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Logits (or hidden states), then keys and values of past and new tokens, layer by layer; and ``layer_outputs``."""
    memory = Crossed(pairs(crossed), additive(states_mask_BS, crossed[0]))
    with carrying(Collected(layer_outputs), Collected) as collected:
        x_BTC, present = decoder(ids_BT, mask_BS, pairs(past) or None, memory)
    of_layers = tuple(collected.tensors[one] for one in layer_outputs)
    return (x_BTC if head is None else head(x_BTC), *flat(present)), of_layers


def completed(decoder: Half, states_BSC: Tensor, held: Sequence[Tensor]) -> Sequence[Tensor]:
    """Keys and values [B, H, S, D] of all states; ``held``, [B, H, P, D]: of the first P.

    Without control flow: they are computed for the states without cached ones (all or none) and appended to
    those that are held.
    """
    if not held:
        return flat(decoder.crossed(states_BSC))
    computed = flat(decoder.crossed(not_held(states_BSC, held[0])))
    return [after_held(*pair) for pair in zip(held, computed, strict=True)]


def _by_layer(decoder: Sequence[InputSpec], held: Sequence[InputSpec]) -> list[InputSpec]:
    """For each layer, the key and value of self-attention, then of the states: clients rely on this order."""
    return [spec for i in range(0, len(decoder), 2) for spec in (*decoder[i : i + 2], *held[i : i + 2])]
