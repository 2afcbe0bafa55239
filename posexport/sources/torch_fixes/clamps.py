"""``clamp`` of real numbers by an integer and a real number, or by a tensor and a number.

PyTorch's exporter makes a tensor of the integer, and finds no operator for a tensor and a number.

Issue: none known. Seen in 2.13.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor


def clamped(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor | None:
    """The result of a call with two kinds of bounds; None for others."""
    if func not in (torch.clamp, Tensor.clamp, torch.clip, Tensor.clip) or "out" in kwargs:
        return None
    return _clamped(*args, **kwargs)


def _clamped(input: Tensor, min: Any = None, max: Any = None) -> Tensor | None:  # noqa: A002 (PyTorch's names)
    if not input.is_floating_point() or min is None or max is None or type(min) is type(max):
        return None
    least, most = (float(bound) if type(bound) is int else bound for bound in (min, max))
    if isinstance(least, float) and isinstance(most, float):
        return input.clamp(least, most)
    return input.clamp(min=least).clamp(max=most)
