"""Calls of a user's module with its example resized: a failure is a result, not an error."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from posexport.errors import PosexportError
from posexport.modules.call import CallError, call
from posexport.modules.user_module import copied
from posexport.sources import memory_mapped
from posexport.system.user_code import raised

#: an axis: the input's name and the axis' number
TensorAxis = tuple[str, int]
Shapes = Mapping[str, tuple[int, ...]]


class SpentError(Exception):
    """There are no calls left."""


@dataclass(frozen=True)
class ExampleCalls:
    """``module`` on ``tensors`` of other shapes, at most ``most`` times; ``failures``: why each failed, or empty."""

    module: nn.Module
    tensors: Mapping[str, Tensor]
    failures: list[str]
    most: int

    @staticmethod
    def of(argument: str, module: nn.Module, tensors: Mapping[str, Tensor], most: int) -> "ExampleCalls":
        """Calls of a copy, where the module is small enough: a call may change it."""
        small = memory_mapped.size_of(module.parameters()) <= memory_mapped.LARGE
        return ExampleCalls(copied(argument, module) if small else module, tensors, [], most)

    @property
    def left(self) -> int:
        """How many calls may still be made."""
        return self.most - len(self.failures)

    def __call__(self, shapes: Shapes) -> dict[str, Tensor] | None:
        """The outputs on the example in those shapes; None where it fails, or gives nothing or no numbers there."""
        tensors = {name: resized(tensor, shapes[name]) for name, tensor in self.tensors.items()}
        return self.run(followed(tensors, self.tensors))

    def run(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        """The outputs for ``tensors``, as for a call."""
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
        if any(output.is_floating_point() and not bool(output.isfinite().all()) for output in outputs.values()):
            self.failures[-1] = "an output is NaN or infinite"
            return None
        return outputs


def resized(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """``tensor`` cut, or continued from its start, on every axis: all its values are the example's."""
    for axis, (before, after) in enumerate(zip(tensor.shape, shape, strict=True)):
        if before != after:
            tensor = tensor.index_select(axis, torch.arange(after) % before)
    return tensor


def counts_rows(name: str, tensor: Tensor) -> bool:
    """Whether an input seems to hold the length of every row: ``feature_lengths``."""
    return tensor.dim() == 1 and not tensor.is_floating_point() and "len" in name.lower()


def counts_tokens(name: str, tensor: Tensor, size: int) -> bool:
    """Whether an input says how many tokens of every row are real, in a sequence of ``size``."""
    return counts_rows(name, tensor) and int(tensor.max()) == size


def followed(resized: Mapping[str, Tensor], example: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """``resized`` inputs whose lengths are those of the sequence that they count: its whole rows are whole again."""
    followed = dict(resized)
    for name, lengths in resized.items():
        if not counts_rows(name, example[name]):
            continue
        whole = int(example[name].max())
        sizes = [
            (before, after)
            for other, tensor in example.items()
            for before, after in zip(tensor.shape, resized[other].shape, strict=True)
        ]
        new = next((after for before, after in sizes if before == whole != after), whole)
        followed[name] = torch.where(lengths == whole, new, lengths.clamp(max=new))
    return followed
