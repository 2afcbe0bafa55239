"""Decoders and encoder-decoders without a KV cache: hidden states of a whole sequence and the outputs of a head.

So embedders and classifiers use decoders (Wang et al., "Improving Text Embeddings with Large Language Models",
arXiv:2401.00368, section 3). Tokens are numbered by the mask, so that padding on either side moves none.

Shape letters: B batch, T tokens.

Lewis et al., "BART" (arXiv:1910.13461), section 3.1. The decoder reads the text one token to the right after a start
token, without a mask of padding, as in transformers; its state at the last end token represents the text.

Shape letters: B batch, T tokens, S the encoder's states, C model size.
"""

import msgspec
import torch
from torch import Tensor

from posexport.base.spec import InputSpec, LengthContract, OutputSpec
from posexport.encodings.encoding import Encoding
from posexport.models.decoder import Crossed, Decoder
from posexport.models.definition import Definition, limits_of, text_inputs, together
from posexport.models.encoder import Encoder
from posexport.models.sides import side_of
from posexport.nn.attention import additive
from posexport.nn.heads import Head


class HeadedDecoder(Definition):
    """``padding_is``: the id that the head takes for padding whatever the mask says; None: the mask alone counts."""

    def __init__(self, decoder: Decoder, head: Head, *, padding_is: int | None = None) -> None:
        super().__init__()
        self.decoder = decoder
        self.head = head
        self.padding_is = padding_is
        self.reads_first_token = head.reads_first_token
        self.ordered = self.causal = decoder.causal

    @property
    def encoding(self) -> Encoding:
        return self.encodings[0]

    @property
    def encodings(self) -> list[Encoding]:
        return self.decoder.encodings

    @property
    def shift_invariant(self) -> bool:
        """Tokens are numbered by the mask: padding on the left moves none."""
        return True

    @property
    def padding_invariant(self) -> bool:
        return all(encoding.padding_invariant for encoding in self.encodings)

    @property
    def limits(self) -> LengthContract:
        dependent = any(encoding.length_dependent for encoding in self.encodings)
        contract = together([limits_of(encoding) for encoding in self.encodings])
        return msgspec.structs.replace(contract, length_dependent=dependent)

    @property
    def inputs(self) -> list[InputSpec]:
        config = self.decoder.config
        return text_inputs(config.vocab, config.padding_id)

    @property
    def outputs(self) -> list[OutputSpec]:
        return self.head.outputs

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> tuple[Tensor, ...]:
        x_BTC, _ = self.decoder(input_ids, attention_mask)
        mask_BT = attention_mask
        if self.padding_is is not None:
            real_BT = input_ids != self.padding_is
            mask_BT = real_BT if mask_BT is None else real_BT & (mask_BT != 0)
        outputs: tuple[Tensor, ...] = self.head(x_BTC, mask_BT)
        return outputs


class HeadedEncoderDecoder(Definition):
    """``start``: the token before the text; ``end``: the one at which the head reads. One table of embeddings."""

    ordered = True

    def __init__(self, encoder: Encoder, decoder: Decoder, head: Head, *, start: int, end: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.head = head
        self.start, self.end = start, end
        self.overhead = encoder.embeddings.position_ids.offset
        decoder.token.weight = encoder.embeddings.token.weight

    @property
    def encoding(self) -> Encoding:
        """The encoding of the encoder's first layer."""
        return self.encoder.encoding

    @property
    def shift_invariant(self) -> bool:
        """No: the decoder reads padding before a text like tokens of it."""
        return False

    @property
    def padding_invariant(self) -> bool:
        return all(encoding.padding_invariant for encoding in [*self.encoder.encodings, *self.decoder.encodings])

    @property
    def limits(self) -> LengthContract:
        contracts = [*side_of(self.encoder).contracts, *(limits_of(encoding) for encoding in self.decoder.encodings)]
        dependent = any(encoding.length_dependent for encoding in self.decoder.encodings)
        return msgspec.structs.replace(together(contracts), length_dependent=dependent)

    @property
    def inputs(self) -> list[InputSpec]:
        config = self.encoder.config
        return text_inputs(config.vocab, config.padding_id)

    @property
    def outputs(self) -> list[OutputSpec]:
        return self.head.outputs

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> tuple[Tensor, ...]:
        states_BSC = self.encoder(input_ids, attention_mask)
        start_B1 = torch.full_like(input_ids[:, :1], self.start)
        crossed = Crossed(self.decoder.crossed(states_BSC), additive(attention_mask, states_BSC))
        x_BTC, _ = self.decoder(torch.cat([start_B1, input_ids[:, :-1]], 1), None, None, crossed)
        outputs: tuple[Tensor, ...] = self.head(x_BTC, input_ids == self.end)
        return outputs
