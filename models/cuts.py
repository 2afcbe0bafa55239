"""Other cuts of an encoder-decoder than its own parts: decoders that are given the encoder's states.

optimum and transformers.js hand the encoder's states [B, S, C] to the decoder, which computes keys and values of them
in its first call and takes them back as a cache in later ones. `EncoderDecoderModel.parts` leaves that to the encoder.

``past_key_values`` holds keys and values, layer by layer; ``named``: the same, by the inputs' names.

Shape letters: B batch, T new tokens of the decoder, S the encoder's states, P states whose keys and values are held
(none or all), C model size, H heads, D head size.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from posexport.models.decoder import Decoder
from posexport.models.encoder_decoder import EncoderDecoderModel, decode, side_of

#: the encoder's states, as decoders take them
STATES = "encoder_hidden_states"
#: of the axis of states, for ONNX's Slice
_TO_THE_END = 2**63 - 1


class EncoderAlone(nn.Module):
    """The encoder's inputs to its states."""

    def __init__(self, whole: EncoderDecoderModel) -> None:
        super().__init__()
        self.encoder = whole.encoder

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        input_features: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """By the names that encoders have; only those that are given are passed on."""
        named = {"input_ids": input_ids, "attention_mask": attention_mask, "input_features": input_features}
        return (side_of(self.encoder)(**{name: value for name, value in named.items() if value is not None}),)


class DecoderOfStates(nn.Module):
    """New tokens, states and the decoder's own cache to logits, that cache, and keys and values of the states."""

    def __init__(self, whole: EncoderDecoderModel) -> None:
        super().__init__()
        self.decoder, self.head = whole.decoder, whole.head

    def forward(
        self,
        input_ids: Tensor,
        encoder_hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        past_key_values: Sequence[Tensor] = (),
        **named: Tensor,
    ) -> tuple[Tensor, ...]:
        """``past_key_values``: of the decoder's own tokens."""
        crossed = [tensor for pair in self.decoder.crossed(encoder_hidden_states) for tensor in pair]
        held = [*past_key_values, *named.values()]
        answers = decode(self.decoder, self.head, input_ids, attention_mask, encoder_attention_mask, held, crossed)
        return (*answers, *crossed)


class DecoderWithPast(nn.Module):
    """New tokens and both caches to logits and the cache of the decoder's own tokens."""

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
        """``past_key_values``: of every layer the decoder's own, then those of the encoder's states."""
        own, crossed = both([*past_key_values, *named.values()])
        return decode(self.decoder, self.head, input_ids, attention_mask, encoder_attention_mask, own, crossed)


class MergedDecoder(nn.Module):
    """`DecoderOfStates` in calls that hold no keys and values of the states, else `DecoderWithPast`: one graph.

    Without control flow: keys and values are computed of the states that none are held of, which are all or none, and
    put behind those that are held.
    """

    def __init__(self, whole: EncoderDecoderModel) -> None:
        super().__init__()
        self.decoder, self.head = whole.decoder, whole.head

    def forward(
        self,
        input_ids: Tensor,
        encoder_hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        past_key_values: Sequence[Tensor] = (),
        **named: Tensor,
    ) -> tuple[Tensor, ...]:
        """``past_key_values``: of every layer the decoder's own, then those of the encoder's states."""
        own, held = both([*past_key_values, *named.values()])
        crossed = completed(self.decoder, encoder_hidden_states, held)
        answers = decode(self.decoder, self.head, input_ids, attention_mask, encoder_attention_mask, own, crossed)
        return (*answers, *crossed)


def both(held: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Key, value, key and value of every layer as those of the decoder and those of the states."""
    layers = [held[start : start + 4] for start in range(0, len(held), 4)]
    return [tensor for layer in layers for tensor in layer[:2]], [tensor for layer in layers for tensor in layer[2:]]


def completed(decoder: Decoder, states_BSC: Tensor, held: Sequence[Tensor]) -> list[Tensor]:
    """Keys and values [B, H, S, D] of all states, those of the first P being ``held``, [B, H, P, D].

    While ``torch.onnx.export`` traces, sizes of what is computed anew are said to be those of the whole: its tracer
    would fix which of both cases it is. `posexport.export.unknown_sizes` forgets these sizes.
    """
    if not torch.onnx.is_in_onnx_export():
        new = [tensor for pair in decoder.crossed(states_BSC[:, held[0].shape[2] :]) for tensor in pair]
        return [torch.cat(pair, 2) for pair in zip(held, new, strict=True)]
    starts = torch.onnx.ops.symbolic(
        "::Shape", (held[0],), attrs={"start": 2, "end": 3}, dtype=torch.int64, shape=(1,), version=18
    )
    end, axis = (torch.tensor([number], dtype=torch.int64) for number in (_TO_THE_END, 1))
    left_BSC = torch.onnx.ops.symbolic(
        "::Slice", (states_BSC, starts, end, axis), dtype=states_BSC.dtype, shape=states_BSC.shape, version=18
    )
    new = [tensor for pair in decoder.crossed(left_BSC) for tensor in pair]
    return [
        torch.onnx.ops.symbolic(
            "::Concat", pair, attrs={"axis": 2}, dtype=states_BSC.dtype, shape=pair[1].shape, version=18
        )
        for pair in zip(held, new, strict=True)
    ]
