"""``torch.arange(1, x.dim()).tolist()`` in a trace: the numbers are known, and PyTorch's tracer makes symbols of them.

Issue: none known. Seen in 2.13.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class _Range:
    tensor: Tensor
    version: int
    numbers: range


class ConstantRanges:
    """The ranges of numbers in one trace."""

    def __init__(self) -> None:
        self._known: list[_Range] = []

    def called(self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """A range, or the list of one that nothing has changed since; None for other calls."""
        if func is torch.arange and not kwargs and all(type(arg) is int for arg in args):
            tensor = torch.arange(*args)
            self._known.append(_Range(tensor, tensor._version, range(*args)))  # noqa: SLF001
            return tensor
        if func is not Tensor.tolist:
            return None
        known = (each for each in self._known if each.tensor is args[0])
        return next((list(each.numbers) for each in known if each.tensor._version == each.version), None)  # noqa: SLF001
