"""``torch.arange`` and ``torch.linspace`` with as many elements as a dynamic axis, computed from an integer range.

PyTorch specialises the axis at the steps of a linspace. Its exporter gives an arange without a dtype the type of its
end: from 0.0 to a size it is a Range of integers, and from 0.5 on it is 0, 1 ..., without a word. One from 0 to 10.0,
without an axis, has integers too.

Issue: pytorch/pytorch 172930 (linspace; its pull request 184939 is not in 2.13). Of arange none is known. Seen in 2.13.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import SymFloat, SymInt, Tensor

_ARANGE = (), ("end",), ("start", "end"), ("start", "end", "step")
_LINSPACE = "start", "end", "steps"


def elements(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor | None:
    """The elements of a call of dynamic length or by fractions; None where the exporter writes it correctly."""
    if func is torch.arange and len(args) < len(_ARANGE) and "out" not in kwargs:
        numbers = {"start": 0, "step": 1, **dict(zip(_ARANGE[len(args)], args, strict=True)), **kwargs}
        return _arange(**numbers)
    if func is torch.linspace and len(args) <= len(_LINSPACE):
        numbers = {**dict(zip(_LINSPACE, args, strict=False)), **kwargs}
        return _linspace(**numbers) if isinstance(numbers.get("steps"), SymInt) else None
    return None


def _arange(
    start: Any, end: Any, step: Any, *, dtype: torch.dtype | None = None, device: Any = None, **rest: Any
) -> Tensor | None:
    numbers = (start, end, step)
    is_dynamic = any(isinstance(number, SymInt | SymFloat) for number in numbers)
    is_float = any(isinstance(number, float | SymFloat) for number in numbers)
    if not is_float or not (dtype is None or (dtype.is_floating_point and is_dynamic)):
        return None
    dtype = dtype or torch.get_default_dtype()
    if not is_dynamic:
        index = _first(math.ceil((end - start) / step), torch.float64, device)
        exact: Tensor = index * step + start
        return exact.to(dtype)
    count = _count(start, end, step)
    if count is None:
        ranged = torch.arange(start, end, step, dtype=dtype, device=device, **rest)
        if not any(isinstance(number, float) and not number.is_integer() for number in (start, step)):
            return ranged
        count = ranged.shape[0]
    # a Range would add the fractions up
    elements: Tensor = _first(count, dtype, device) * step + start
    return elements


def _count(start: Any, end: Any, step: Any) -> Any:
    """How many elements a range by fractions to a size has, where a sum or a product says it; else None."""
    if not isinstance(end, SymInt) or not isinstance(start, int | float) or not isinstance(step, int | float):
        return None
    if step == 1 and not float(start).is_integer():
        return end - int(start // 1)
    if 0 < step < 1 and float(start).is_integer() and (1 / step).is_integer():
        return (end - int(start)) * int(1 / step)
    return None


def _linspace(
    start: Any, end: Any, steps: SymInt, *, dtype: torch.dtype | None = None, device: Any = None, **_: Any
) -> Tensor:
    """Computed from both ends, as PyTorch does."""
    dtype = torch.get_default_dtype() if dtype is None else dtype
    index = _first(steps, torch.int64, device)
    left = index.flip(0)
    between = (end - start) / (index + left).clamp(min=1).to(dtype)
    return torch.where(index <= left, start + index * between, end - left * between).to(dtype)


def _first(count: Any, dtype: torch.dtype, device: Any) -> Tensor:
    return torch.arange(count, dtype=dtype, device=device)
