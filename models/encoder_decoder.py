"""An encoder-decoder of the T5, BART and Whisper families, with any position encoding in both halves.

Raffel et al., "T5" (arXiv:1910.10683); Lewis et al., "BART" (arXiv:1910.13461). The decoder attends to the encoder's
states without positions, by keys and values that are computed once.

The whole is the definition; it is exported in two parts, so that a decode step never touches the encoder:
``encoder_model.onnx`` (the encoder, and the keys and values of its states in every layer of the decoder) and
``decoder_model.onnx`` (new tokens after any cache: one graph for prefill and decode steps). Files and tensors are
named as optimum names them.
"""

import msgspec
from torch import Tensor, nn

from posexport.base.spec import ENCODER_SEQUENCE, SEQUENCE, InputSpec, LengthContract, OutputSpec, ProofPlan
from posexport.encodings.encoding import Encoding
from posexport.models.cached_decoder import flat
from posexport.models.decoder import Decoder
from posexport.models.definition import Definition, Part, limits_of, together
from posexport.models.encoder import Encoder
from posexport.models.encoder_decoder_parts import Wiring, decode
from posexport.models.sides import Half, Side, encoded, side_of


class EncoderDecoderModel(Definition):
    """The encoder's inputs and the decoder's new tokens with the cache of the ones before, to ``logits`` and caches.

    ``shared``: the decoder reads the embeddings of an encoder of token ids. Without ``head`` it returns hidden states.
    """

    ordered = True
    causal = True

    def __init__(self, encoder: Encoder | Side, decoder: Half, head: nn.Module | None, *, shared: bool = True) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.head = head
        if isinstance(encoder, Encoder):
            self.overhead = encoder.embeddings.position_ids.offset
            if shared and isinstance(decoder, Decoder):
                decoder.token.weight = encoder.embeddings.token.weight

    @property
    def side(self) -> Side:
        return side_of(self.encoder)

    @property
    def wiring(self) -> Wiring:
        """Its inputs and outputs, and the parts that it can be cut into."""
        return Wiring(self.encoder, self.decoder, self.head, self.layer_outputs)

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
        return all(encoding.padding_invariant for encoding in [*self._padded(), *self.decoder.encodings])

    @property
    def reused(self) -> list[nn.Module]:
        """The encoder: every call of the decoder for a text reads the same states."""
        return [self.encoder] if isinstance(self.encoder, nn.Module) else []

    @property
    def reused_calls(self) -> list[tuple[nn.Module, str]]:
        """Methods that read the same there: keys and values of the states."""
        return [(self.decoder, "crossed")] if isinstance(self.decoder, nn.Module) else []

    @property
    def limits(self) -> LengthContract:
        """What both halves allow: one limit, for the encoder's tokens and for past and new tokens of the decoder."""
        side, decoder = self.side, self.decoder
        limits = together([*side.contracts, *(limits_of(encoding) for encoding in decoder.encodings)])
        far = {ENCODER_SEQUENCE} & {axis for spec in side.inputs for axis in spec.axes}
        return msgspec.structs.replace(
            limits,
            limited_axes=[SEQUENCE, *far],
            kv_cache=True,
            length_dependent=any(encoding.length_dependent for encoding in decoder.encodings),
        )

    @property
    def plan(self) -> ProofPlan:
        """Sizes to trace at, for the cache and for the encoder's tokens."""
        return ProofPlan(trace_sizes={**self.decoder.caching.cache.trace_sizes, ENCODER_SEQUENCE: 13})

    @property
    def inputs(self) -> list[InputSpec]:
        """The encoder's; ids of new tokens of the decoder, the mask of past and new ones, the past's cache."""
        wiring = self.wiring
        tokens = [msgspec.structs.replace(spec, name=f"decoder_{spec.name}") for spec in wiring.own_tokens]
        return [*wiring.side_inputs, *tokens, *wiring.past]

    @property
    def outputs(self) -> list[OutputSpec]:
        """Logits or hidden states, the decoder's cache, and what the encoder computed: keys and values, states.

        Outputs of layers are the last.
        """
        wiring = self.wiring
        return [*wiring.answers, *wiring.crossed, wiring.whole_states, *wiring.made_mask, *wiring.of_layers]

    @property
    def parts(self) -> list[Part]:
        return self.wiring.parts

    def forward(self, **inputs: Tensor) -> tuple[Tensor, ...]:
        wiring = self.wiring
        given = {spec.name: inputs[spec.name] for spec in wiring.side_inputs if spec.name in inputs}
        states_BSC, *made = encoded(self.side, given)
        crossed = flat(self.decoder.crossed(states_BSC))
        answers, of_layers = decode(
            self.decoder,
            self.head,
            inputs["decoder_input_ids"],
            inputs.get("decoder_attention_mask"),
            made[0] if made else None if wiring.mask is None else inputs.get(wiring.mask.name),
            [inputs[spec.name] for spec in wiring.past if spec.name in inputs],
            crossed,
            self.layer_outputs,
        )
        return (*answers, *crossed, states_BSC, *made, *of_layers)

    def _padded(self) -> list[Encoding]:
        """The encoder's, where its inputs differ in length."""
        return [] if isinstance(self.side.states_axis, int) else self.side.encodings
