"""An encoder-decoder of the T5 and BART families, with any position encoding in both halves.

Raffel et al., "T5" (arXiv:1910.10683); Lewis et al., "BART" (arXiv:1910.13461). Both read the same vocabulary; the
decoder attends to the encoder's states without positions.
"""

import msgspec
from torch import Tensor, nn

from posexport.encodings.base import Encoding
from posexport.models.decoder import Crossed, Decoder, LanguageModel
from posexport.models.definition import Definition
from posexport.models.encoder import Encoder, additive
from posexport.models.envelope import envelope_of
from posexport.spec import BATCH, ENCODER_SEQUENCE, SEQUENCE, Envelope, InputSpec, OutputSpec


class EncoderDecoderModel(Definition):
    """Ids of both sequences, with their masks, to ``logits`` of the decoder's tokens (or their hidden states)."""

    ordered = True
    causal = True

    def __init__(self, encoder: Encoder, decoder: Decoder, head: LanguageModel | None) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.head = head
        _share(decoder.token, encoder.embeddings.token)

    @property
    def encoding(self) -> Encoding:
        """The encoding of the encoder's first layer."""
        return self.encoder.encoding

    @property
    def shift_invariant(self) -> bool:
        """As the encoder's: the decoder numbers its tokens by the mask."""
        return self.encoding.shift_invariant

    @property
    def envelope(self) -> Envelope:
        """Both halves have the same tables, so the same limit."""
        own = envelope_of(self.encoding)
        return msgspec.structs.replace(own, limited_axes=[*own.limited_axes, ENCODER_SEQUENCE])

    @property
    def inputs(self) -> list[InputSpec]:
        """Token ids and masks of the encoder, then of the decoder."""
        config = self.encoder.config
        return [
            spec
            for prefix, axis in (("", ENCODER_SEQUENCE), ("decoder_", SEQUENCE))
            for spec in (
                InputSpec(
                    name=f"{prefix}input_ids",
                    dtype="int64",
                    axes=[BATCH, axis],
                    role="tokens",
                    size=config.vocab,
                    padding=config.padding_id,
                ),
                InputSpec(name=f"{prefix}attention_mask", dtype="int64", axes=[BATCH, axis], role="mask"),
            )
        ]

    @property
    def outputs(self) -> list[OutputSpec]:
        """Logits over the vocabulary, or hidden states."""
        config = self.decoder.config
        if self.head is None:
            return [OutputSpec(name="last_hidden_state", axes=[BATCH, SEQUENCE, config.hidden])]
        return [OutputSpec(name="logits", axes=[BATCH, SEQUENCE, config.vocab])]

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        assert decoder_input_ids is not None
        states_BSC = self.encoder(input_ids, attention_mask)
        memory = Crossed(self.decoder.crossed(states_BSC), additive(attention_mask, states_BSC))
        x_BTC, _ = self.decoder(decoder_input_ids, decoder_attention_mask, None, memory)
        return (x_BTC if self.head is None else self.head(x_BTC),)


def _share(into: nn.Embedding, source: nn.Embedding) -> None:
    into.weight = source.weight
