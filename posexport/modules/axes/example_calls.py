"""Calls of a user's module on its example, resized: a failure is an answer, not an error."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from posexport.modules.axes.row_lengths import followed
from posexport.modules.user_module import copied, named_outputs
from posexport.sources import memory_mapped
from posexport.system.user_code import is_external, line_of_error, raised

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
            with torch.no_grad():
                outputs = named_outputs(self.module(**{name: tensor.clone() for name, tensor in tensors.items()}))
        except BaseException as err:
            if isinstance(err, KeyboardInterrupt) or (not isinstance(err, MemoryError) and is_external(err)):
                raise
            line = line_of_error(err)
            self.failures[-1] = f"the module raised {raised(err)}" + (f" ({line})" if line else "")
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
