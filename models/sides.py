"""How an encoder-decoder reads its encoder and its decoder: a definition, or any module that is a `Half`.

``encoder`` is an `Encoder` of token ids, or any module that is a `Side`: Whisper's has ``input_features`` [batch, mel
bins, 3000] alone and ``states_axis`` 1500.

Shape letters: B batch, S the encoder's states, C model size.

Shape letters: B batch, T new tokens, S past and new tokens or the encoder's states, C model size.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from torch import Tensor

from posexport.base.spec import BATCH, ENCODER_SEQUENCE, Axis, InputSpec, LengthContract
from posexport.encodings.encoding import Encoding
from posexport.models.decoder import Crossed
from posexport.models.definition import limits_of
from posexport.models.encoder import Encoder
from posexport.nn.caching import Caching, KeysAndValues


class Side(Protocol):
    """An encoder: inputs by name to states [B, S, C].

    An input of role ``mask`` over [batch, states_axis], if there is one, marks the states to attend to. With
    ``makes_mask`` the encoder makes this mask of one over its other inputs, such as samples of sound.
    """

    makes_mask: bool

    @property
    def inputs(self) -> list[InputSpec]:
        """The input specs, in the order of the arguments."""

    @property
    def states_axis(self) -> Axis:
        """`ENCODER_SEQUENCE`, or how many states there always are."""

    @property
    def encodings(self) -> list[Encoding]:
        """The encodings of the layers; the first is the encoder's."""

    @property
    def contracts(self) -> list[LengthContract]:
        """What bounds its inputs; none where their size is fixed."""

    def __call__(self, **inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Returns the states, [B, S, C]; with ``makes_mask`` the states and their mask, int64 [B, S]."""


class TextSide:
    """An encoder that reads token ids."""

    makes_mask = False
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
    def contracts(self) -> list[LengthContract]:
        return [limits_of(encoding, self.encoder.embeddings.position_ids) for encoding in self.encodings]

    def __call__(self, **inputs: Tensor) -> Tensor:
        states_BSC: Tensor = self.encoder(inputs["input_ids"], inputs.get("attention_mask"))
        return states_BSC


def side_of(encoder: Encoder | Side) -> Side:
    return TextSide(encoder) if isinstance(encoder, Encoder) else encoder


def encoded(side: Side, inputs: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    """The states, [B, S, C], and if the encoder makes one their mask, [B, S]."""
    answer = side(**inputs)
    return answer if isinstance(answer, tuple) else (answer,)


class Sizes(Protocol):
    """Of a decoder's tensors. ``heads``: of cross attention, ``kv_heads``: of self-attention."""

    @property
    def vocab(self) -> int: ...

    @property
    def padding_id(self) -> int: ...

    @property
    def hidden(self) -> int: ...

    @property
    def layers(self) -> int: ...

    @property
    def heads(self) -> int: ...

    @property
    def kv_heads(self) -> int: ...

    @property
    def head_size(self) -> int: ...


class Half(Protocol):
    """A decoder of new tokens with a KV cache, which reads an encoder's states as keys and values."""

    @property
    def config(self) -> Sizes: ...

    @property
    def caching(self) -> Caching: ...

    @property
    def encodings(self) -> list[Encoding]:
        """Returns the encodings of all layers."""

    @property
    def width(self) -> int:
        """Of the hidden states that it gives."""

    def crossed(self, states_BSC: Tensor) -> list[KeysAndValues]:
        """Every layer's keys and values of an encoder's states."""

    def __call__(
        self, ids_BT: Tensor, mask_BS: Tensor | None, past: Sequence[KeysAndValues] | None, memory: Crossed
    ) -> tuple[Tensor, list[KeysAndValues]]:
        """Hidden states for the head, and self-attention's keys and values of every layer."""
