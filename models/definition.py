"""The base of all definitions: inputs, outputs, lengths, guarantees."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec
from torch import nn

from posexport.base.spec import (
    BATCH,
    SEQUENCE,
    Axis,
    Beyond,
    InputSpec,
    LengthContract,
    OutputSpec,
    PartSpec,
    Promises,
    ProofPlan,
)
from posexport.encodings.encoding import Encoding
from posexport.nn.collected import LayerOutput
from posexport.nn.heads import Head
from posexport.nn.position_ids import PositionIds


def limits_of(
    encoding: Encoding, position_ids: PositionIds | None = None, beyond: Beyond | None = None
) -> LengthContract:
    """The lengths of a model with this encoding; they change with `posexport.encodings.beyond.extend`.

    ``position_ids``: rows of the table that no real token gets do not count, where the encoding reads the ids
    (hooks ``embed`` and ``rotate``); terms of attention read distances, which have no unused rows. ``beyond``: what was
    chosen, where that is not what the encoding itself says.
    """
    overhead = position_ids.offset if position_ids is not None and reads_numbers(encoding) else 0

    def usable(length: int | None) -> int | None:
        return None if length is None else length - overhead

    return LengthContract(
        trained_length=usable(encoding.trained_length),
        max_length=usable(encoding.limit),
        beyond=beyond or encoding.beyond,
        boundaries=sorted({length - overhead for length in encoding.boundaries if length > overhead}),
    )


def together(contracts: Sequence[LengthContract]) -> LengthContract:
    """What models with these contracts allow together: the smallest limit, every boundary; else the first one's."""
    return msgspec.structs.replace(
        contracts[0],
        trained_length=_smallest(contract.trained_length for contract in contracts),
        max_length=_smallest(contract.max_length for contract in contracts),
        boundaries=sorted({boundary for contract in contracts for boundary in contract.boundaries}),
    )


def reads_numbers(encoding: Encoding) -> bool:
    """Whether the encoding acts on tokens by their position ids, not on pairs by their distance alone."""
    return "embed" in encoding.hooks or "rotate" in encoding.hooks


def limits_of_module(module: nn.Module) -> LengthContract:
    """What all encodings in a module allow together: the smallest limit, every boundary."""
    contracts = [limits_of(m) for m in module.modules() if isinstance(m, Encoding)]
    return LengthContract(
        trained_length=_smallest(e.trained_length for e in contracts),
        max_length=_smallest(e.max_length for e in contracts),
        boundaries=sorted({b for e in contracts for b in e.boundaries}),
    )


def _smallest(lengths: Iterable[int | None]) -> int | None:
    return min((length for length in lengths if length is not None), default=None)


@dataclass(frozen=True)
class Part:
    """A separate graph that computes a part of a model; ``module`` has submodules of the whole, by the same names."""

    spec: PartSpec
    module: nn.Module


class Definition(nn.Module, ABC):
    """A whole model. ``forward`` takes its `inputs` by name and returns a tuple in the order of `outputs`."""

    #: rows at the start of a position table that no real token uses (`posexport.nn.position_ids`)
    overhead: int = 0
    #: an output without a length axis is read at token 0, so a left-padded row is answered at a padded token
    reads_first_token: bool = False

    #: something other than the encoding depends on the order of tokens (a causal mask, a convolution)
    ordered: bool = False

    #: what it computes for a token of ``sequence_length`` does not depend on the ones after it
    causal: bool = False

    #: outputs of single layers, in addition to the task's (``--outputs``)
    layer_outputs: Sequence[LayerOutput] = ()

    @property
    @abstractmethod
    def inputs(self) -> list[InputSpec]:
        """The input specs, in the order of the arguments."""

    @property
    @abstractmethod
    def outputs(self) -> list[OutputSpec]:
        """The output specs, in the order of the results."""

    @property
    @abstractmethod
    def encoding(self) -> Encoding:
        """The encoding of the first layer: the model's, where all layers share it."""

    @property
    def encodings(self) -> list[Encoding]:
        """The encodings of the layers that may differ; one where all share it."""
        return [self.encoding]

    @property
    def reused(self) -> list[nn.Module]:
        """Modules with equal inputs in successive calls: a proof can reuse their outputs."""
        return []

    @property
    def limits(self) -> LengthContract:
        """The lengths (of images: the sizes) it is right for."""
        return limits_of(self.encoding)

    @property
    def plan(self) -> ProofPlan:
        """The sizes to trace and to prove it at."""
        return ProofPlan()

    @property
    def parts(self) -> list[Part]:
        """The graphs it is exported as, in the order they run; none: it is one."""
        return []

    @property
    def shift_invariant(self) -> bool:
        """Outputs do not change when all positions move by the same amount (left padding changes nothing)."""
        return self.encoding.shift_invariant

    @property
    def padding_invariant(self) -> bool:
        """Padding on the right does not change the outputs of other tokens."""
        return self.encoding.padding_invariant

    @property
    def promises(self) -> Promises:
        """What holds between its outputs for different inputs, as one record."""
        return Promises(
            shift_invariant=self.shift_invariant,
            padding_invariant=self.padding_invariant,
            reads_first_token=self.reads_first_token,
            positional=self.ordered or bool(self.encodings[0].hooks),
            causal=self.causal,
            position_offset=self.overhead,
        )


class AroundDefinition(Definition):
    """A definition around another one, with its inputs, positions, limits and promises."""

    def __init__(self, model: Definition) -> None:
        super().__init__()
        self.model = model

    @property
    def inputs(self) -> list[InputSpec]:
        return self.model.inputs

    @property
    def encoding(self) -> Encoding:
        return self.model.encoding

    @property
    def encodings(self) -> list[Encoding]:
        return self.model.encodings

    @property
    def limits(self) -> LengthContract:
        return self.model.limits

    @property
    def plan(self) -> ProofPlan:
        return self.model.plan

    @property
    def promises(self) -> Promises:
        return self.model.promises


class HeadedModel(Definition):
    """An encoder, and a head that reads its hidden states."""

    def __init__(self, encoder: nn.Module, head: Head) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head
        self.reads_first_token = head.reads_first_token

    @property
    def outputs(self) -> list[OutputSpec]:
        return self.head.outputs


def text_inputs(vocab: int, padding_id: int, types: int = 0) -> list[InputSpec]:
    """Token ids, their mask, and token types where there are several."""
    axes: list[Axis] = [BATCH, SEQUENCE]
    ids = InputSpec(name="input_ids", dtype="int64", axes=axes, role="tokens", size=vocab, padding=padding_id)
    specs = [ids, InputSpec(name="attention_mask", dtype="int64", axes=axes, role="mask")]
    if types > 1:
        specs.append(InputSpec(name="token_type_ids", dtype="int64", axes=axes, role="types", size=types))
    return specs
