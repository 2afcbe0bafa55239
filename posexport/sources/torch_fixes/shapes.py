"""``x.shape[:2].numel()``: the product of a part of a shape, which ``torch.Size.numel`` makes a constant of.

Issue: none known. Seen in 2.13.
"""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import SymInt, Tensor

#: the attribute of `torch.Size`; frames between a user's function and `counted`
_NUMEL, _FRAMES = "numel", 6
_SHAPE = Tensor.shape.__get__  # type: ignore[attr-defined]


class Sizes(tuple[Any, ...]):
    """A shape, and parts of it, whose product stays symbolic."""

    def numel(self) -> Any:
        return math.prod(self)

    def __getitem__(self, index: Any) -> Any:
        part = super().__getitem__(index)
        return Sizes(part) if isinstance(index, slice) else part


def counted(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sizes | None:
    """The shape of a tensor of dynamic size, for a function that calls ``numel``; None for others."""
    if func != _SHAPE and not (func is Tensor.size and len(args) == 1 and not kwargs):
        return None
    frame = sys._getframe(1)  # noqa: SLF001
    for _ in range(_FRAMES):
        if _NUMEL in frame.f_code.co_names:
            shape = args[0].shape
            return Sizes(shape) if any(isinstance(size, SymInt) for size in shape) else None
        if frame.f_back is None:
            break
        frame = frame.f_back
    return None
