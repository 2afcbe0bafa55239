"""Parts of an encoder-decoder whose decoder takes the encoder's states, as optimum and transformers.js call them."""

from collections.abc import Sequence

import msgspec

from posexport.definition.definition import Part
from posexport.errors import PosexportError
from posexport.models.cuts import STATES, DecoderOfStates, DecoderWithPast, EncoderAlone, MergedDecoder
from posexport.models.encoder_decoder import EncoderDecoderModel
from posexport.sources.source import Source
from posexport.spec import ENCODER_PAST, InputSpec, OutputSpec, PartSpec


class Cut:
    """The parts of one source, from those of its own (`EncoderDecoderModel.parts`)."""

    def __init__(self, source: Source) -> None:
        if not isinstance(source.module, EncoderDecoderModel):
            raise PosexportError(f"{source.name} is exported in parts that are not known to any layout; leave it out")
        self.whole = source.module
        self._encoder, self._decoder = (part.spec for part in source.parts)

    def encoder(self, file: str) -> Part:
        """Its inputs to its states."""
        states, spec = self._states, self._encoder
        own = msgspec.structs.replace(spec, file=file, outputs=[states], gives={states.name: spec.gives[states.name]})
        return Part(own, EncoderAlone(self.whole))

    def first(self, file: str) -> Part:
        """New tokens and the states to logits and both caches, where there is no past."""
        spec = PartSpec(
            file=file,
            inputs=[*self._tokens, self._states_input],
            outputs=self._all_outputs,
            feeds=self._feeds([*self._tokens, self._states_input]),
            gives=self._gives(self._all_outputs),
            when="first",
        )
        return Part(spec, DecoderOfStates(self.whole))

    def later(self, file: str) -> Part:
        """New tokens and both caches to logits and the cache of the decoder's own tokens."""
        inputs = [*self._tokens, *_by_layer(self._past, self._kept)]
        spec = PartSpec(
            file=file,
            inputs=inputs,
            outputs=self._decoder.outputs,
            feeds=self._feeds(inputs),
            gives=self._gives(self._decoder.outputs),
            when="later",
        )
        return Part(spec, DecoderWithPast(self.whole))

    def merged(self, file: str) -> list[Part]:
        """One graph for both: new tokens, states and both caches to logits and both caches; its mask has a default."""
        tokens = [
            msgspec.structs.replace(spec, default=1) if spec.name == "attention_mask" else spec for spec in self._tokens
        ]
        kept = [
            msgspec.structs.replace(spec, role="cache", axes=[*spec.axes[:2], ENCODER_PAST, spec.axes[3]])
            for spec in self._kept
        ]
        fixed = [*tokens, self._states_input]
        spec = PartSpec(
            file=file,
            inputs=[*fixed, *_by_layer(self._past, kept)],
            outputs=self._all_outputs,
            feeds=self._feeds([*fixed, *self._past]),
            gives=self._gives(self._all_outputs),
            when="first",
        )
        later = msgspec.structs.replace(
            spec, feeds=self._feeds(spec.inputs), gives=self._gives(self._decoder.outputs), when="later"
        )
        module = MergedDecoder(self.whole)
        return [Part(spec, module), Part(later, module)]

    @property
    def _states(self) -> OutputSpec:
        return self._encoder.outputs[0]

    @property
    def _crossed(self) -> list[OutputSpec]:
        return self._encoder.outputs[1:]

    @property
    def _all_outputs(self) -> list[OutputSpec]:
        return [*self._decoder.outputs, *self._crossed]

    @property
    def _tokens(self) -> list[InputSpec]:
        """The new tokens and the masks."""
        return [spec for spec in self._decoder.inputs if spec.role in ("tokens", "mask")]

    @property
    def _past(self) -> list[InputSpec]:
        return [spec for spec in self._decoder.inputs if spec.role == "cache"]

    @property
    def _kept(self) -> list[InputSpec]:
        """Keys and values of the states."""
        return [spec for spec in self._decoder.inputs if spec.role == "values"]

    @property
    def _states_input(self) -> InputSpec:
        return InputSpec(name=STATES, dtype="float32", axes=self._states.axes, role="values")

    def _feeds(self, inputs: Sequence[InputSpec]) -> dict[str, str]:
        states = self._encoder.gives[self._states.name]
        return {spec.name: self._decoder.feeds.get(spec.name, states) for spec in inputs}

    def _gives(self, outputs: Sequence[OutputSpec]) -> dict[str, str]:
        known = {**self._encoder.gives, **self._decoder.gives}
        return {spec.name: known[spec.name] for spec in outputs}


def _by_layer(own: Sequence[InputSpec], kept: Sequence[InputSpec]) -> list[InputSpec]:
    """Of every layer the decoder's key and value, then those of the states: clients count on that order."""
    return [spec for i in range(0, len(own), 2) for spec in (*own[i : i + 2], *kept[i : i + 2])]
