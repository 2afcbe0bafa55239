"""The half of an encoder-decoder that a graph of another tool is, as a source of its own.

optimum writes an encoder, which returns its states, and decoders that take these states. posexport's own decoder takes
the keys and values of the states instead, so that the definition is cut in another way here.

Shape letters: B batch, T new tokens of the decoder, S the encoder's states, C model size.
"""

from collections.abc import Sequence

import msgspec

from posexport.errors import PosexportError
from posexport.models.encoder_decoder import EncoderDecoderModel
from posexport.models.encoder_decoder_parts import DECODER_FILE, ENCODER_FILE
from posexport.models.encoder_decoder_parts import STATES as STATES
from posexport.parity.foreign.signature import Signature
from posexport.sources.source import Source
from posexport.spec import ENCODER_SEQUENCE, SEQUENCE, Axis


def half(source: Source, graph: Signature) -> Source:
    """``source``, or the half of it whose inputs ``graph`` has: encoder, decoder of states, or of caches only."""
    if not source.parts or "decoder_input_ids" in graph.inputs:
        return source
    if not isinstance(source.module, EncoderDecoderModel):
        raise PosexportError(f"{source.name} has halves that are not known; verify a graph of the whole")
    if STATES in graph.inputs:
        return _decoder(source, source.module)
    if any(name.startswith("past_key_values") for name in graph.inputs):
        # keys and values of the states are inputs, and have no positions
        later = source.graphs[DECODER_FILE]
        return msgspec.structs.replace(later, limits=msgspec.structs.replace(later.limits, limited_axes=[SEQUENCE]))
    return _encoder(source, source.module)


def _encoder(source: Source, whole: EncoderDecoderModel) -> Source:
    """Its inputs to its states. Their sequence is the only one."""
    part = whole.wiring.encoder_alone(ENCODER_FILE)
    inputs = [msgspec.structs.replace(spec, axes=_alone(spec.axes)) for spec in part.spec.inputs]
    varies = any(SEQUENCE in spec.axes for spec in inputs)
    positional = bool(whole.encodings[0].hooks) if varies else None
    old = source.limits
    return msgspec.structs.replace(
        source,
        module=part.module,
        inputs=inputs,
        outputs=[msgspec.structs.replace(spec, axes=_alone(spec.axes)) for spec in part.spec.outputs],
        limits=msgspec.structs.replace(
            old,
            kv_cache=False,
            length_dependent=False,
            max_length=old.max_length if ENCODER_SEQUENCE in old.limited_axes else None,
            limited_axes=[SEQUENCE],
        ),
        # where the inputs have one size, there is nothing to permute
        encoding=source.encoding if varies else None,
        promises=msgspec.structs.replace(source.promises, causal=False, positional=positional),
        parts=[],
    )


def _decoder(source: Source, whole: EncoderDecoderModel) -> Source:
    """New tokens and the encoder's states to logits, the cache, and keys and values of the states."""
    wiring = whole.wiring
    part = wiring.first(DECODER_FILE)
    return msgspec.structs.replace(
        source,
        module=part.module,
        inputs=[*wiring.tokens, *wiring.past, wiring.states_input],
        outputs=part.spec.outputs,
        # the states have no positions: there may be any number of them
        limits=msgspec.structs.replace(source.limits, limited_axes=[SEQUENCE]),
        parts=[],
    )


def _alone(axes: Sequence[Axis]) -> list[Axis]:
    return [SEQUENCE if axis == ENCODER_SEQUENCE else axis for axis in axes]
