"""A decoder with a KV cache: token ids, mask and cache to an output and the cache, by the names of the ecosystem.

Shape letters: B batch, T new tokens, S past and new tokens.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from torch import Tensor

from posexport.definition.definition import Definition
from posexport.encodings.encoding import Encoding
from posexport.nn.caching import Caching, KeysAndValues
from posexport.spec import BATCH, SEQUENCE, TOTAL, Axis, Envelope, InputSpec, OutputSpec


def token_inputs(vocab: int, padding_id: int, prefix: str = "") -> list[InputSpec]:
    """Ids of the new tokens, and the mask of past and new ones."""
    ids, mask = f"{prefix}input_ids", f"{prefix}attention_mask"
    return [
        InputSpec(name=ids, dtype="int64", axes=[BATCH, SEQUENCE], role="tokens", size=vocab, padding=padding_id),
        InputSpec(name=mask, dtype="int64", axes=[BATCH, TOTAL], role="mask"),
    ]


@dataclass(frozen=True)
class CacheTensors:
    """Keys and values of every layer. ``shapes``: (KV heads, head size) a layer; ``part``: whose, where two are."""

    shapes: Sequence[tuple[int, int]]
    part: str = ""

    def outputs(self, name: str, length: Axis) -> list[OutputSpec]:
        """``name.0.key``, ``name.0.value``, ``name.1.key`` ..., with ``length`` tokens or slots."""
        return [
            OutputSpec(name=f"{name}.{index}.{self.part}{half}", axes=[BATCH, heads, length, size])
            for index, (heads, size) in enumerate(self.shapes)
            for half in ("key", "value")
        ]

    def inputs(self, name: str, length: Axis) -> list[InputSpec]:
        """The same as inputs."""
        specs = self.outputs(name, length)
        return [InputSpec(name=spec.name, dtype="float32", axes=spec.axes, role="cache") for spec in specs]


def pairs(tensors: Sequence[Tensor]) -> list[KeysAndValues]:
    """Key, value, key, value ... as one pair a layer."""
    return list(zip(tensors[::2], tensors[1::2], strict=True))


def flat(layers: Sequence[KeysAndValues]) -> tuple[Tensor, ...]:
    """Key, value, key, value ... Undoes `pairs`."""
    return tuple(tensor for pair in layers for tensor in pair)


class CachedDecoder(Definition):
    """New tokens and the cache of the ones before, to logits (or hidden states) and the cache of all.

    One graph does the prefill (an empty past), a part of one, or a decode step. Tokens are numbered by the mask.
    """

    ordered = True
    causal = True

    @property
    @abstractmethod
    def caching(self) -> Caching:
        """How past tokens are kept."""

    @property
    @abstractmethod
    def lengths(self) -> Envelope:
        """What its encodings allow together."""

    @property
    @abstractmethod
    def cache_tensors(self) -> CacheTensors:
        """What is kept of them."""

    @property
    @abstractmethod
    def all_encodings(self) -> list[Encoding]:
        """Every encoding in it, also of its input."""

    @property
    @abstractmethod
    def tokens(self) -> list[InputSpec]:
        """Ids of the new tokens, and the mask of past and new ones."""

    @property
    @abstractmethod
    def position_ids(self) -> InputSpec | None:
        """Positions of the new tokens; None where nothing reads them."""

    @property
    @abstractmethod
    def answer(self) -> OutputSpec:
        """Logits over the vocabulary, or hidden states."""

    @abstractmethod
    def decode(
        self, ids_BT: Tensor, mask_BS: Tensor | None, past: Sequence[KeysAndValues] | None, positions_BT: Tensor | None
    ) -> tuple[Tensor, Sequence[KeysAndValues]]:
        """The output for the new tokens, and every layer's keys and values of all, as the cache keeps them."""

    @property
    def encoding(self) -> Encoding:
        """The encoding of the first layer."""
        return self.encodings[0]

    @property
    def shift_invariant(self) -> bool:
        """Tokens are numbered by the mask: padding on the left moves none."""
        return True

    @property
    def padding_invariant(self) -> bool:
        """Padding on the right changes nothing in any layer."""
        return all(encoding.padding_invariant for encoding in self.all_encodings)

    @property
    def envelope(self) -> Envelope:
        """What its encodings allow; a limit is about past and new tokens together."""
        return msgspec.structs.replace(
            self.lengths,
            cached=True,
            length_dependent=any(encoding.length_dependent for encoding in self.all_encodings),
            traced=self.caching.cache.traced,
        )

    @property
    def inputs(self) -> list[InputSpec]:
        """Ids of the new tokens, the mask of past and new ones, the past's cache, positions where they matter."""
        past = self.cache_tensors.inputs("past_key_values", self.caching.cache.past_axis)
        return [*self.tokens, *past, *([] if self.position_ids is None else [self.position_ids])]

    @property
    def outputs(self) -> list[OutputSpec]:
        """The output for the new tokens; keys and values of all tokens."""
        return [self.answer, *self.cache_tensors.outputs("present", self.caching.cache.present_axis)]

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Sequence[Tensor] = (),
        position_ids: Tensor | None = None,
        **named: Tensor,
    ) -> tuple[Tensor, ...]:
        """``past_key_values``: keys and values of every layer in turn; ``named``: the same, by the inputs' names."""
        past = pairs([*past_key_values, *named.values()]) or None
        output, present = self.decode(input_ids, attention_mask, past, position_ids)
        return (output, *flat(present))
