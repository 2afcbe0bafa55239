"""A user's module with declared inputs and outputs, as export and proof call it.

`UserModule` returns a tuple of tensors in the declared order and checks their axes. An exception of the module becomes
a PosexportError with the exception, the sizes, the user's line, and the longest input that was accepted before.
"""

import copy
import inspect
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from posexport.base.spec import BATCH, SEQUENCE, InputSpec, OutputSpec
from posexport.errors import PosexportError, RefusedSizesError
from posexport.modules.call import CallError, call, computed_dtype
from posexport.modules.copied import copying, deep_copied, with_copied_closures
from posexport.modules.lazy_copies import share_until_written
from posexport.modules.recognise.mode import called, traced
from posexport.modules.returned import named_outputs, names_beside
from posexport.modules.value_branches import TakingWays, Ways
from posexport.sources.source import TracedModule
from posexport.sources.torch_fixes.as_exported import as_exported
from posexport.sources.torch_fixes.constant_ranges import with_constant_ranges
from posexport.sources.torch_fixes.global_tables import without_cached_results
from posexport.sources.torch_fixes.known_values import KnownValues, small_buffers
from posexport.sources.torch_fixes.module_state import emptied, empty_attributes, with_state_kept
from posexport.sources.torch_fixes.packed_rows import with_packed_rows
from posexport.sources.torch_fixes.scripted import without_scripts
from posexport.sources.torch_fixes.subclasses import without_subclasses
from posexport.sources.torch_fixes.swapped_data import SwappedData
from posexport.sources.torch_fixes.whole_row import WholeRow

#: what to do about an example that holds past keys and values
PAST_IS_OURS = (
    "leave it out, and let forward take None for it: past keys and values are posexport's, which gives a decoder a KV "
    "cache"
)


class UserModule(TracedModule):
    """``module``, called by keyword with the names of ``inputs``; returns a tuple in the order of ``outputs``.

    `by_name` makes a subclass for every module: the signature of ``forward`` and ``accepted`` belong to the class, so
    that copies share them.
    """

    #: (in float64, sizes of the inputs) that the module accepted
    accepted: ClassVar[set[tuple[bool, tuple[tuple[str, int], ...]]]]

    def __init__(
        self, argument: str, module: nn.Module, inputs: Sequence[InputSpec], outputs: Sequence[OutputSpec]
    ) -> None:
        super().__init__()
        self.argument, self.inputs, self.outputs = argument, inputs, outputs
        #: outputs of the module that are not declared
        self.dropped: set[str] = set()
        self.module = module
        #: what a call may fill, as a table of the first length
        self.empty = empty_attributes(module)
        #: values that a trace knows
        self.known = small_buffers(module)
        #: the way that a trace takes at lines that branch by values
        self.ways: Ways = {}
        #: one row of every batch is whole, and a trace takes the largest of the row lengths for its size
        self.has_whole_row = False
        #: a trace makes a table of an earlier call anew
        self.makes_tables = False

    def forward(self, **tensors: Tensor) -> tuple[Tensor, ...]:
        if torch.compiler.is_dynamo_compiling():  # the exporter's second try, which follows Python code, not modes
            return tuple(self._declared(named_outputs(self.module(**tensors))).values())
        if torch.compiler.is_compiling():  # the tracer reports by itself what it cannot follow
            whole_row = self._whole_row(tensors)
            state, ways = with_state_kept(self.module), TakingWays(self.ways)
            with (
                as_exported(),
                without_scripts(),
                without_subclasses(),
                without_cached_results(self.module),
                state,
                with_packed_rows(),
                with_constant_ranges(),
                traced() as mode,
                ways,
                whole_row,
                KnownValues(self.module, self.known),
                SwappedData(),
            ):
                outputs = self._declared(named_outputs(self.module(**tensors)))
            self.attentions[:] = mode.reasons
            return tuple(outputs.values())
        sizes = sizes_of(self.inputs, tensors)
        try:
            outputs = self._declared(self._called(tensors))
        except PosexportError as err:
            raise PosexportError(f"{self.argument}: {err}") from err
        except CallError as failed:
            raise RefusedSizesError(self._sentence(failed, sizes), sizes) from failed.error
        self._check(outputs, sizes)
        self.accepted.add((computed_dtype(self.module) == torch.float64, tuple(sizes.items())))
        return tuple(outputs.values())

    def _called(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The outputs; where the module fails by what an earlier call left, without that."""
        try:
            return call(self.module, tensors, mode=called())
        except CallError:
            if not emptied(self.module, self.empty):
                raise
            return call(self.module, tensors, mode=called())

    def __deepcopy__(self, memo: dict[int, Any]) -> "UserModule":
        other = copy.copy(self)
        memo[id(self)] = other
        with copying(self.argument):
            share_until_written(self, memo)
            other.__dict__ = deep_copied(self.__dict__, memo)
            return with_copied_closures(other, memo)

    def _whole_row(self, tensors: Mapping[str, Tensor]) -> AbstractContextManager[object]:
        if not self.has_whole_row:
            return nullcontext()
        lengths = [tensors[spec.name] for spec in self.inputs if spec.role == "lengths"]
        return WholeRow(lengths, sizes_of(self.inputs, tensors)[SEQUENCE])

    def _declared(self, outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The outputs that are declared, by their names in the graph; a number has one axis of size 1."""
        names = names_beside([spec.name for spec in self.inputs], outputs)
        declared = {names[name]: tensor for name, tensor in outputs.items() if names[name] not in self.dropped}
        return {name: tensor if tensor.dim() else tensor[None] for name, tensor in declared.items()}

    def _sentence(self, failed: CallError, sizes: dict[str, int]) -> str:
        """What the module raised, and the most likely reason by what it accepted before."""
        wide, key = computed_dtype(self.module) == torch.float64, tuple(sizes.items())
        sentence = f"{self.argument}: {failed.sentence(f'at {at(sizes)}')}"
        if wide and ((False, key) in self.accepted or not any(double for double, _ in self.accepted)):
            return (
                f"{sentence} in float64, the precision of the reference; use the dtype of the input or of a weight, "
                "x.dtype, where it names one"
            )
        if (wide, key) in self.accepted:
            return f"{sentence}, and took other values of the same sizes; it must take them all"
        if past := [spec.name for spec in self.inputs if looks_past(spec)]:
            return f"{sentence}; the example has {', '.join(past)}: {PAST_IS_OURS}"
        length = sizes.get(SEQUENCE)
        longest = max((dict(accepted).get(SEQUENCE, 0) for _, accepted in self.accepted), default=0)
        if length is not None and 0 < longest < length:
            return f"{sentence}, and took {longest}. If that is its limit, convert with --max-length {longest}."
        return f"{sentence}; it must take every batch size, and every length up to its limit"

    def _check(self, outputs: Mapping[str, Tensor], sizes: Mapping[str, int]) -> None:
        """PosexportError where the outputs have other names or axes than declared."""
        names = [spec.name for spec in self.outputs]
        if list(outputs) != names:
            raise PosexportError(
                f"{self.argument}: the module returned the outputs {list(outputs)} at {at(sizes)}, and {names} before; "
                "it must return the same ones for every input"
            )
        for spec in self.outputs:
            expected = [sizes.get(axis) if isinstance(axis, str) else axis for axis in spec.axes]
            got = list(outputs[spec.name].shape)
            if len(got) != len(expected) or any(w not in (None, g) for w, g in zip(expected, got, strict=True)):
                raise PosexportError(
                    f"{self.argument}: output {spec.name} has the shape {got} at {at(sizes)}, and {expected} was "
                    "expected from calls at other sizes: its shape depends on the values of the inputs, or on their "
                    "sizes in a way that those calls did not show; return one of a fixed size, or of an input's"
                )


def by_name(argument: str, module: nn.Module, inputs: Sequence[InputSpec], outputs: Sequence[OutputSpec]) -> UserModule:
    """``module`` as a `UserModule` with the names of ``inputs`` as forward's parameters, which torch.export reads."""

    class ByName(UserModule):
        accepted: ClassVar = set()
        attentions: ClassVar = []

        def forward(self, **tensors: Tensor) -> tuple[Tensor, ...]:
            return super().forward(**tensors)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(name, kind) for name in ("self", *(spec.name for spec in inputs))]
    ByName.forward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return ByName(argument, module, inputs, outputs).eval()


def returning(user: UserModule, outputs: Sequence[OutputSpec]) -> UserModule:
    """The same module and weights with other ``outputs``: fewer, or with other axes."""
    other = copy.copy(user)
    other.dropped = user.dropped | ({spec.name for spec in user.outputs} - {spec.name for spec in outputs})
    other.outputs = outputs
    return other


def looks_past(spec: InputSpec) -> bool:
    """Whether an input has a name and axes as of past keys and values."""
    return spec.role == "values" and len(spec.axes) > 3 and any(word in spec.name for word in ("past", "cache"))


def sizes_of(inputs: Sequence[InputSpec], tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """The size of every named axis of ``tensors``; embeddings in the place of ids have one axis more."""
    return {
        axis: size
        for spec in inputs
        for axis, size in zip(spec.axes, tensors[spec.name].shape, strict=False)
        if isinstance(axis, str)
    }


def at(sizes: Mapping[str, int]) -> str:
    """Sizes for a message: ``length 9, batch 2``."""
    words = {SEQUENCE: "length", BATCH: "batch"}
    order = sorted(sizes, key=lambda axis: (axis != SEQUENCE, axis != BATCH))
    return ", ".join(f"{words.get(axis, axis)} {sizes[axis]}" for axis in order) or "fixed sizes"
