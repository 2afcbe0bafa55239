"""Calls of a user's module with inputs drawn at sizes: failures as an error, or as a reason."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

import torch
from torch import Tensor, nn

from posexport.base.spec import ENCODER_SEQUENCE, SEQUENCE, InputSpec
from posexport.base.system.freed_memory import trim_grown
from posexport.errors import PosexportError, RefusedSizesError
from posexport.modules.axes.memory import Made
from posexport.modules.axes.shapes_alone import ShapesAlone
from posexport.modules.call import CallError, call
from posexport.modules.copied import copied
from posexport.modules.user_module import at
from posexport.sources import memory_mapped
from posexport.sources.example import example
from posexport.sources.torch_fixes.exporter_output import without_exporter_output
from posexport.sources.torch_fixes.global_tables import without_cached_results

Sizes = dict[str, int]
#: axes of tokens, for which the longest input is searched
TOKEN_AXES = (SEQUENCE, ENCODER_SEQUENCE)
#: tensors as large as the largest that a call has in memory together, at most
_MOST_TENSORS = 9
#: elements of an input that is drawn for the shapes of a call alone
_MOST_DRAWN = 1 << 23
#: by which the same number may differ where more are computed with it
_ROUNDING = 1e-6


class DrawnCalls:
    """Calls of a copy of ``module``; of the module itself where it is too large to be copied."""

    def __init__(self, argument: str, module: nn.Module, inputs: list[InputSpec]) -> None:
        self.argument, self.inputs = argument, inputs
        self.original = module
        self.small = memory_mapped.size_of(module.parameters()) <= memory_mapped.LARGE
        self.module = self.fresh() if self.small else module
        #: inside `_of_shapes`
        self._shapes: ShapesAlone | None = None
        self._tables = self._tensors()
        #: whether `failure` reports tensors of the module that a call replaces by larger ones
        self.watched = self.small
        #: whether one of the same rows is reported too, and not noted in `beyond`
        self.keeps_tables = False
        #: sizes at which a call made a table of an earlier call anew, larger and with the same rows
        self.beyond: Sizes = {}
        #: outputs of calls of drawn inputs, of a module whose calls take seconds
        self._outputs: dict[tuple[tuple[str, int], ...], dict[str, Tensor]] = {}
        #: axes of inputs, each with an axis of an output, by name and number, that has the same size
        self._equal_axes: set[tuple[str, str, int]] = set()

    def fresh(self) -> nn.Module:
        """A new copy of the module, as no call has changed it."""
        return copied(self.argument, self.original)

    def run(self, sizes: Sizes, tensors: Mapping[str, Tensor] | None = None, what: str = "") -> dict[str, Tensor]:
        """The outputs at ``sizes``, of ``tensors`` or drawn inputs; ``what`` describes them in messages.

        Those of drawn inputs may be of an earlier call, where the module is too large to be copied.

        Raises:
            PosexportError: what the module did there.
        """
        if tensors is None and not self.small:
            key = tuple(sizes.items())
            if key not in self._outputs:
                self._outputs[key] = self.run(sizes, example(self.inputs, sizes), what)
            return self._outputs[key]
        try:
            return call(self.module, self._drawn(sizes) if tensors is None else tensors)
        except PosexportError as err:
            raise PosexportError(f"{self.argument}: {err}") from err
        except CallError as failed:
            sentence = f"{self.argument}: the module failed at sizes {sizes}{what}: {failed.quoted}{failed.line}"
            raise RefusedSizesError(sentence, sizes) from failed.error
        finally:
            trim_grown()

    def failure(self, sizes: Sizes, from_last: int = 0) -> str:
        """Why the module does not accept ``sizes``; empty where it does.

        ``from_last``: all ids of tokens are the last one (1), or the one before it (2).

        Raises:
            NoRoomError: the machine has not enough memory for the call.
        """
        tensors = self._drawn(sizes)
        for spec in self.inputs if from_last else ():
            if spec.role == "tokens" and spec.size is not None:
                tensors[spec.name].fill_(max(spec.size - from_last, 0))
        try:
            outputs = call(self.module, tensors)
        except PosexportError as err:
            return str(err)
        except CallError as failed:
            return failed.sentence(f"at {_at(sizes)}")
        except KeyboardInterrupt:
            raise
        except BaseException as err:
            raise NoRoomError from err
        finally:
            trim_grown()
        return self.grown(sizes) or self._cut(sizes, outputs)

    def accepts(self, sizes: Sizes, from_last: int = 0) -> bool:
        """Whether a new copy accepts ``sizes``, as far as shapes and integers show (`ShapesAlone`), in little memory.

        False also where that does not show, or where the module is too large to be copied.
        """
        if not self.small:
            return False
        with self._of_shapes():
            try:
                return not self.failure(sizes, from_last)
            except Exception:  # noqa: BLE001 (a table without values, which cannot be compared)
                return False

    def shapes(self, sizes: Sizes) -> dict[str, tuple[int, ...]]:
        """The shapes of the outputs at ``sizes``, in little memory where that is possible.

        Raises:
            PosexportError: what the module did there.
        """
        if self.small:
            with self._of_shapes(), suppress(PosexportError):
                return {name: tuple(tensor.shape) for name, tensor in self.run(sizes).items()}
        return {name: tuple(tensor.shape) for name, tensor in self.run(sizes).items()}

    def call_bytes(self, sizes: Mapping[str, int]) -> int | None:
        """Bytes that a call at ``sizes`` has in memory together, at most; None where shapes alone do not tell."""
        if not self.small:
            return None
        with self._of_shapes():
            try:
                with Made() as made:
                    self.run(dict(sizes))
            except Exception:  # noqa: BLE001 (a value of a tensor that has none)
                return None
        return int(min(made.bytes, _MOST_TENSORS * 4 * made.elements))

    def _drawn(self, sizes: Sizes) -> dict[str, Tensor]:
        """Inputs of ``sizes``; large ones have no values where shapes alone are asked for, as of pairs of tokens."""
        if self._shapes is None:
            return example(self.inputs, sizes)
        large = {
            spec.name: shape
            for spec in self.inputs
            if math.prod(shape := [sizes[axis] if isinstance(axis, str) else axis for axis in spec.axes]) > _MOST_DRAWN
        }
        drawn = example([spec for spec in self.inputs if spec.name not in large], sizes)
        dtypes = {spec.name: getattr(torch, spec.dtype) for spec in self.inputs}
        empty = {name: self._shapes.empty(shape, dtypes[name]) for name, shape in large.items()}
        return {spec.name: (empty if spec.name in large else drawn)[spec.name] for spec in self.inputs}

    @contextmanager
    def _of_shapes(self) -> Iterator[None]:
        """Calls inside the block are of a new copy, and compute no large tensors."""
        before, self.module = self.module, self.fresh()
        try:
            with without_cached_results(self.module), without_exporter_output(), ShapesAlone() as self._shapes:
                yield
        finally:
            self.module, self._shapes = before, None

    def follow(self, axis: str, first: Sizes, second: Sizes) -> None:
        """Note the axes of outputs that have the size of ``axis`` at both sizes: `failure` reports where one ends."""

        def equal(sizes: Sizes) -> set[tuple[str, str, int]]:
            shapes = {name: tensor.shape for name, tensor in self.run(sizes).items()}
            return {
                (axis, name, number)
                for name, shape in shapes.items()
                for number in range(len(shape))
                if shape[number] == sizes[axis]
            }

        self._equal_axes |= equal(first) & equal(second)

    def _cut(self, sizes: Sizes, outputs: Mapping[str, Tensor]) -> str:
        """Which output is shorter than its input; empty where none is."""
        for axis, name, number in self._equal_axes:
            got = list(outputs[name].shape) if name in outputs else None
            if got is None or got[number : number + 1] != [sizes[axis]]:
                return f"the module cuts longer inputs: its output {name} has the shape {got} at {_at(sizes)}"
        return ""

    def _tensors(self) -> dict[str, Tensor]:
        """Every tensor that the module holds."""
        return {
            f"{path}.{name}" if path else name: value
            for path, submodule in self.module.named_modules()
            for name, value in {**vars(submodule), **dict(submodule.named_buffers(recurse=False))}.items()
            if isinstance(value, Tensor)
        }

    def grown(self, sizes: Sizes) -> str:
        """Names the tensors of the module that the last call replaced by one of another shape; empty if none.

        A larger one with the same rows may be of an earlier call: a trace at these sizes makes it.
        """
        tensors = self._tensors() if self.watched else {}
        changed = [name for name, x in tensors.items() if x.shape != self._tables.get(name, x).shape]
        if not changed:
            return ""
        if not self.keeps_tables and all(_has_rows_of(tensors[name], self._tables[name]) for name in changed):
            self.beyond = sizes
            for name in changed:
                del self._tables[name]
            return ""
        name = changed[0]
        before, after = list(self._tables[name].shape), list(tensors[name].shape)
        self.module = self.fresh()
        return (
            f"forward regrows {name} (shape {before}) at {_at(sizes)} (shape {after}), and a graph keeps the rows "
            "that it was traced with; make it for the longest input in __init__"
        )


def _has_rows_of(larger: Tensor, table: Tensor) -> bool:
    """Whether a table is the beginning of a larger one, along all axes."""
    if larger.dtype != table.dtype or larger.dim() != table.dim():
        return False
    begins = larger[tuple(map(slice, table.shape))]
    return begins.shape == table.shape and torch.allclose(begins, table, atol=_ROUNDING)


class NoRoomError(Exception):
    """The machine has not enough memory for a call."""


def _at(sizes: Sizes) -> str:
    return at({axis: size for axis, size in sizes.items() if axis in TOKEN_AXES} or sizes)
