"""A decoder with a KV cache: token ids, mask and cache to an output and the cache, by the names of the ecosystem.

Shape letters: B batch, T new tokens, S past and new tokens.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
from torch import Tensor

from posexport.base.spec import BATCH, SEQUENCE, TOTAL, Axis, InputSpec, LengthContract, OutputSpec, ProofPlan, State
from posexport.base.targets.dtypes import INT8, MODEL_DTYPE
from posexport.encodings.encoding import Encoding
from posexport.models.definition import Definition
from posexport.nn.caching import Caching, KeysAndValues
from posexport.nn.rounded_cache import EXTRA


def token_input(vocab: int, padding_id: int, prefix: str = "") -> InputSpec:
    axes: list[Axis] = [BATCH, SEQUENCE]
    name = f"{prefix}input_ids"
    return InputSpec(name=name, dtype="int64", axes=axes, role="tokens", size=vocab, padding=padding_id)


def mask_input(prefix: str = "") -> InputSpec:
    return InputSpec(name=f"{prefix}attention_mask", dtype="int64", axes=[BATCH, TOTAL], role="mask")


def answer_output(vocab: int, width: int | None) -> OutputSpec:
    """Logits over the vocabulary, or hidden states of ``width`` channels."""
    if width is None:
        return OutputSpec(name="logits", axes=[BATCH, SEQUENCE, vocab])
    return OutputSpec(name="last_hidden_state", axes=[BATCH, SEQUENCE, width])


@dataclass(frozen=True)
class CacheTensors:
    """Keys and values of every layer.

    Attributes:
        shapes: KV heads and channels of a key, by layer.
        value_sizes: channels of a value, by layer; empty: as of keys.
        prefix: of names.
    """

    shapes: Sequence[tuple[int, int]]
    value_sizes: Sequence[int] = ()
    prefix: str = ""

    def outputs(self, name: str, length: Axis, *, rounds: bool = False) -> list[OutputSpec]:
        """``name.0.key``, ``name.0.value``, ``name.1.key`` ..., with ``length`` tokens or slots.

        ``rounds``: kept in 8 bits. Such numbers jump where a value is near a tie: calls that read them are compared.
        """
        more = EXTRA if rounds else 0
        return [
            OutputSpec(
                name=f"{name}.{index}.{self.prefix}{half}",
                axes=[BATCH, heads, length, channels + more],
                compared=not rounds,
            )
            for index, (heads, size) in enumerate(self.shapes)
            for half, channels in (("key", size), ("value", (self.value_sizes or [size] * (index + 1))[index]))
        ]

    def inputs(self, name: str, length: Axis, *, rounds: bool = False) -> list[InputSpec]:
        specs, dtype = self.outputs(name, length, rounds=rounds), INT8.name if rounds else MODEL_DTYPE.name
        return [InputSpec(name=spec.name, dtype=dtype, axes=spec.axes, role="cache") for spec in specs]


@dataclass(frozen=True)
class StateTensors:
    """States between tokens. ``shapes``: of the states of each kind, without the batch, in the order of the layers."""

    shapes: Mapping[str, Sequence[Sequence[int]]] = field(default_factory=dict)

    @property
    def outputs(self) -> list[OutputSpec]:
        """``present_conv.0``, ``present_conv.1`` ..., ``present_recurrent.0`` ..."""
        return [
            OutputSpec(name=f"present_{kind}.{index}", axes=[BATCH, *shape])
            for kind, shapes in self.shapes.items()
            for index, shape in enumerate(shapes)
        ]

    @property
    def inputs(self) -> list[InputSpec]:
        """``past_conv.0``, ``past_conv.1`` ..., ``past_recurrent.0`` ..."""
        return [
            InputSpec(
                name=spec.name.replace("present_", "past_", 1),
                dtype=MODEL_DTYPE.name,
                axes=spec.axes,
                role="state",
                state=State(output=spec.name),
            )
            for spec in self.outputs
        ]


def pairs(tensors: Sequence[Tensor]) -> list[KeysAndValues]:
    """Key, value, key, value ... as one pair a layer."""
    return list(zip(tensors[::2], tensors[1::2], strict=True))


def flat(layers: Sequence[KeysAndValues]) -> tuple[Tensor, ...]:
    """Key, value, key, value ... Undoes `pairs`."""
    return tuple(tensor for pair in layers for tensor in pair)


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """The description of a decoder with a KV cache.

    Attributes:
        tokens: ids of the new tokens.
        position_ids: their positions; None where nothing reads them.
        answer: logits over the vocabulary, or hidden states.
        cache: keys and values of every layer.
        encodings: every encoding in it, the input's included.
        lengths: what these allow together.
        states: what layers keep between tokens, apart from the cache.
    """

    tokens: InputSpec
    position_ids: InputSpec | None
    answer: OutputSpec
    cache: CacheTensors
    encodings: Sequence[Encoding]
    lengths: LengthContract
    states: StateTensors = field(default_factory=StateTensors)


class CachedDecoder(Definition):
    """New tokens and the cache of the ones before, to logits (or hidden states) and the cache of all.

    One graph does the prefill (an empty past), a chunk of it, or a decode step. Tokens are numbered by the mask.
    """

    ordered = True
    causal = True

    @property
    @abstractmethod
    def caching(self) -> Caching:
        """How past tokens are kept."""

    @property
    @abstractmethod
    def decoding(self) -> Decoding:
        """What it takes, returns and promises."""

    @abstractmethod
    def decode(
        self, ids_BT: Tensor, mask_BS: Tensor | None, past: Sequence[KeysAndValues] | None, positions_BT: Tensor | None
    ) -> tuple[Tensor, Sequence[KeysAndValues]]:
        """The output for the new tokens, and every layer's keys and values of all, as the cache keeps them."""

    @property
    def encoding(self) -> Encoding:
        return self.encodings[0]

    @property
    def shift_invariant(self) -> bool:
        """Tokens are numbered by the mask: padding on the left moves none."""
        return True

    @property
    def padding_invariant(self) -> bool:
        return all(encoding.padding_invariant for encoding in self.decoding.encodings)

    @property
    def limits(self) -> LengthContract:
        """A limit is about past and new tokens together."""
        return msgspec.structs.replace(
            self.decoding.lengths,
            kv_cache=True,
            length_dependent=any(encoding.length_dependent for encoding in self.decoding.encodings),
        )

    @property
    def plan(self) -> ProofPlan:
        """Sizes to trace at, for the cache."""
        return ProofPlan(trace_sizes=self.caching.cache.trace_sizes)

    @property
    def inputs(self) -> list[InputSpec]:
        decoding = self.decoding
        caching = self.caching
        past = decoding.cache.inputs("past_key_values", caching.cache.past_axis, rounds=caching.rounds)
        positions = [] if decoding.position_ids is None else [decoding.position_ids]
        return [decoding.tokens, mask_input(), *past, *decoding.states.inputs, *positions]

    @property
    def outputs(self) -> list[OutputSpec]:
        decoding, caching = self.decoding, self.caching
        cache = decoding.cache.outputs("present", caching.cache.present_axis, rounds=caching.rounds)
        return [decoding.answer, *cache, *decoding.states.outputs]

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
