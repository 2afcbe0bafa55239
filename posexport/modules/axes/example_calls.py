"""Calls of a user's module with its example resized: a failure is a result, not an error."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from posexport.base.spec import Axis
from posexport.base.system.user_code import raised
from posexport.errors import PosexportError
from posexport.modules.call import CallError, call
from posexport.modules.copied import copied
from posexport.modules.left_out import has_values
from posexport.sources import memory_mapped

#: an axis, by the name of an input or output and its number
TensorAxis = tuple[str, int]
Shapes = Mapping[str, tuple[int, ...]]


class SpentError(Exception):
    """No further call is allowed."""


#: the rank of ids in columns, [batch, columns]
_WITH_COLUMNS = 2


@dataclass
class ExampleCalls:
    """Calls of ``module`` with the example ``tensors`` in other shapes.

    Attributes:
        failures: of every call why it failed; empty where it did not.
        most: the number of calls that are allowed.
        refused: why it failed, by the shapes, which are not called again.
        repeats: how many of ``failures`` are of such shapes.
        ranks: how many axes each output of the first call has, which a graph's outputs have at all sizes.
        indexed: by input of ids the axes that they are indices of.
    """

    module: nn.Module
    tensors: Mapping[str, Tensor]
    failures: list[str]
    most: int
    refused: dict[tuple[tuple[int, ...], ...], str] = field(default_factory=dict)
    repeats: int = 0
    ranks: dict[str, int] = field(default_factory=dict)
    indexed: Mapping[str, tuple[TensorAxis, ...]] = field(default_factory=dict)

    @staticmethod
    def of(argument: str, module: nn.Module, tensors: Mapping[str, Tensor], most: int) -> "ExampleCalls":
        """Calls of a copy of the module, which a call may change, or of the module itself where it is large."""
        small = memory_mapped.size_of(module.parameters()) <= memory_mapped.LARGE
        return ExampleCalls(copied(argument, module) if small else module, tensors, [], most)

    @property
    def left(self) -> int:
        """How many calls may still be made."""
        return self.most - len(self.failures) + self.repeats

    def __call__(self, shapes: Shapes, *, others: bool = False) -> dict[str, Tensor] | None:
        """The outputs for the example in these shapes; None where it fails.

        Beyond the example it is repeated, where ``others`` with other values.

        An output that is empty or not finite is a failure, and one without an axis that others have: ``squeeze()`` of
        the one frame that a window makes.
        """
        key = tuple(tuple(shapes[name]) for name in self.tensors)
        if key in self.refused:
            self.failures.append(self.refused[key])
            self.repeats += 1
            return None
        tensors = {name: with_largest(resized(tensor, shapes[name]), tensor) for name, tensor in self.tensors.items()}
        if others:
            tensors = {name: with_others(tensor, self.tensors[name].shape) for name, tensor in tensors.items()}
        for name, axes in self.indexed.items():
            rows = max(shapes[other][axis] for other, axis in axes)  # all of them must have one that an id reads
            tensors[name] = with_id(resized(self.tensors[name], shapes[name]) % rows, self.tensors[name], rows - 1)
        outputs = self._of_one_rank(self.run(with_row_lengths(tensors, self.tensors)))
        if outputs is None:
            self.refused[key] = self.failures[-1]
        return outputs

    def _of_one_rank(self, outputs: dict[str, Tensor] | None) -> dict[str, Tensor] | None:
        ranks = {name: output.dim() for name, output in (outputs or {}).items()}
        self.ranks = self.ranks or ranks
        for name in ranks.keys() & self.ranks.keys():
            if ranks[name] != self.ranks[name]:
                self.failures[-1] = f"{name} has {ranks[name]} axes, not {self.ranks[name]}"
                return None
        return outputs

    def run(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        """The outputs for ``tensors``, or None."""
        if self.left <= 0:
            raise SpentError
        self.failures.append("")
        try:
            outputs = call(self.module, tensors)
        except (CallError, PosexportError) as err:
            self.failures[-1] = str(err)
            return None
        except MemoryError as err:
            self.failures[-1] = f"the module raised {raised(err)}"
            return None
        if any(output.numel() == 0 for output in outputs.values()):
            self.failures[-1] = "an output has no elements"
            return None
        if not all(has_values(output) for output in outputs.values()):
            self.failures[-1] = "an output is NaN or infinite"
            return None
        return outputs

    def take_one(self, declared: Mapping[str, Sequence[Axis]]) -> bool:
        """Whether one row of one token is taken: every axis that ``declared`` names has size 1."""
        shapes = {name: tuple(1 if isinstance(axis, str) else axis for axis in axes) for name, axes in declared.items()}
        return self(shapes) is not None

    def take_one_order(self, name: str, axis: int) -> bool:
        """Whether columns of ids have a table each, as features of atoms: the module refuses them in another order."""
        ids = self.tensors[name]
        if not axis or ids.is_floating_point() or ids.dim() != _WITH_COLUMNS:
            return False
        others = (ids.flip(axis), ids.roll(1, axis))
        return any(self.run({**self.tensors, name: ids}) is None for ids in others)


def resized(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """``tensor`` in another shape: cut, or repeated from its start, along every axis."""
    for axis, (before, after) in enumerate(zip(tensor.shape, shape, strict=True)):
        if before != after:
            tensor = tensor.index_select(axis, torch.arange(after) % before)
    return tensor


def with_others(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """``tensor`` with other values beyond ``shape``.

    Real numbers times 3 and -3 in turn, so that the largest and the smallest are there; of integers from the other end
    of their range.
    """
    for axis, size in enumerate(shape):
        before, beyond = tensor.narrow(axis, 0, size), tensor.narrow(axis, size, tensor.shape[axis] - size)
        if tensor.is_floating_point():
            times = 3.0 - 6.0 * (torch.arange(beyond.shape[axis]) % 2)
            beyond = beyond * times.view(-1, *[1] * (tensor.dim() - axis - 1))
        elif tensor.dtype != torch.bool and beyond.numel():
            beyond = tensor.min() + tensor.max() - beyond
        tensor = torch.cat([before, beyond], axis)
    return tensor


def with_largest(cut: Tensor, example: Tensor) -> Tensor:
    """``cut`` with the largest id of ``example``, which may be anywhere: ids of atoms or edges are less than those."""
    if cut.is_floating_point() or cut.dtype == torch.bool or cut.numel() >= example.numel() or not cut.numel():
        return cut
    return with_id(cut, example, int(example.max()))


def with_id(ids: Tensor, example: Tensor, value: int) -> Tensor:
    """``ids`` with a value where ``example``, of other sizes, has its largest."""
    place = tuple(int(at) % size for at, size in zip((example == example.max()).nonzero()[0], ids.shape, strict=True))
    ids = ids.clone()
    ids[place] = value
    return ids


def counts_rows(name: str, tensor: Tensor) -> bool:
    """Whether an input seems to hold the length of every row, as ``feature_lengths`` and ``x_lens`` do."""
    return tensor.dim() == 1 and not tensor.is_floating_point() and "len" in name.lower()


def counts_tokens(name: str, tensor: Tensor, size: int) -> bool:
    """Whether an input holds the length of every row of a sequence of ``size`` tokens."""
    return counts_rows(name, tensor) and int(tensor.max()) == size


def with_row_lengths(resized: Mapping[str, Tensor], example: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Scales the row lengths among ``resized`` inputs to the resized sequence, so that full rows stay full."""
    fitted = dict(resized)
    for name, lengths in resized.items():
        if not counts_rows(name, example[name]):
            continue
        full = int(example[name].max())
        sizes = [
            (before, after)
            for other, tensor in example.items()
            for before, after in zip(tensor.shape, resized[other].shape, strict=True)
        ]
        new = next((after for before, after in sizes if before == full != after), full)
        fitted[name] = torch.where(lengths == full, new, lengths.clamp(max=new))
    return fitted
