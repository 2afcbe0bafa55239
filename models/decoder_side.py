"""How an encoder-decoder reads its decoder: a `Decoder`, or any module that is a `Half`.

Shape letters: B batch, T new tokens, S past and new tokens or the encoder's states, C model size.
"""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from posexport.encodings.encoding import Encoding
from posexport.models.decoder import Crossed
from posexport.nn.caching import Caching, KeysAndValues


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
