"""An encoder with a head, called with the inputs' public names."""

import msgspec
from torch import Tensor

from posexport.encodings.encoding import HOOKS, Encoding
from posexport.models.definition import Definition, text_inputs
from posexport.models.encoder import Encoder
from posexport.models.envelope import envelope_of
from posexport.models.heads import Head
from posexport.spec import BATCH, ENCODER_SEQUENCE, SEQUENCE, Axis, InputSpec, LengthContract, OutputSpec


class EncoderModel(Definition):
    """``forward`` takes the inputs that `inputs` lists, by name, and returns the head's outputs as a tuple."""

    def __init__(self, encoder: Encoder, head: Head) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head
        self.reads_first_token = head.reads_first_token
        if encoder.embeddings.encoding is not None:
            self.overhead = encoder.embeddings.numbering.overhead

    @property
    def encoding(self) -> Encoding:
        """The encoding of the first layer."""
        return self.encoder.encoding

    @property
    def outputs(self) -> list[OutputSpec]:
        """The head's."""
        if not self.encoder.config.sequence_first:
            return self.head.outputs
        return [msgspec.structs.replace(spec, axes=_swapped(spec.axes)) for spec in self.head.outputs]

    @property
    def envelope(self) -> LengthContract:
        """The encoding's, with the boundaries of all layers' encodings where they differ.

        Also for the sequence that is attended to, where the encoding's terms measure distances to it.
        """
        numbering = self.encoder.embeddings.numbering
        envelope = envelope_of(self.encoding, numbering)
        boundaries = {b for encoding in self.encoder.encodings for b in envelope_of(encoding, numbering).boundaries}
        envelope = msgspec.structs.replace(envelope, boundaries=sorted(boundaries))
        between_tokens = any(getattr(type(self.encoding), hook) is not getattr(Encoding, hook) for hook in HOOKS[1:])
        if self.encoder.config.cross_attention and between_tokens:
            return msgspec.structs.replace(envelope, limited_axes=[*envelope.limited_axes, ENCODER_SEQUENCE])
        return envelope

    @property
    def inputs(self) -> list[InputSpec]:
        """The inputs, in order."""
        config = self.encoder.config
        found = text_inputs(config.vocab, config.padding_id, config.types)
        if config.cross_attention:
            memory: list[str | int] = [BATCH, ENCODER_SEQUENCE]
            states = [*memory, config.hidden]
            found.append(InputSpec(name="encoder_hidden_states", dtype="float32", axes=states, role="values"))
            found.append(InputSpec(name="encoder_attention_mask", dtype="int64", axes=memory, role="mask"))
        if not config.sequence_first:
            return found
        return [msgspec.structs.replace(spec, axes=_swapped(spec.axes)) for spec in found]

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        given = [input_ids, attention_mask, token_type_ids, encoder_hidden_states, encoder_attention_mask]
        if self.encoder.config.sequence_first:
            given = [None if tensor is None else tensor.transpose(0, 1) for tensor in given]
        outputs: tuple[Tensor, ...] = self.head(self.encoder(*given), given[1])
        if self.encoder.config.sequence_first:
            pairs = zip(outputs, self.head.outputs, strict=True)
            outputs = tuple(y.transpose(0, 1) if spec.axes[1] == SEQUENCE else y for y, spec in pairs)
        return outputs


def _swapped(axes: list[Axis]) -> list[Axis]:
    """The same axes with the sequence before the batch."""
    return [axes[1], axes[0], *axes[2:]] if axes[1] in (SEQUENCE, ENCODER_SEQUENCE) else axes
