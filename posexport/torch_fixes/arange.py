"""``torch.arange`` and ``torch.linspace`` with as many elements as a dynamic axis, computed from an integer range.

PyTorch specialises the axis at the steps of a linspace. Its exporter writes an arange that starts or steps by a
fraction as a Range of integers, without a word: 0.5, 1.5 ... becomes 0, 1 ...

Issue: pytorch/pytorch 172930 (linspace; its pull request 184939 is not in 2.13). Of arange none is known. Seen in 2.13.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import SymInt, Tensor

_ARANGE = ("end",), ("start", "end"), ("start", "end", "step")
_LINSPACE = "start", "end", "steps"


def elements(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor | None:
    """The elements of a call of dynamic length; None where the exporter writes it correctly."""
    if func is torch.arange and 0 < len(args) <= len(_ARANGE):
        numbers = {"start": 0, "step": 1, **dict(zip(_ARANGE[len(args) - 1], args, strict=True)), **kwargs}
        return _arange(**numbers) if isinstance(numbers["end"], SymInt) else None
    if func is torch.linspace and len(args) <= len(_LINSPACE):
        numbers = {**dict(zip(_LINSPACE, args, strict=False)), **kwargs}
        return _linspace(**numbers) if isinstance(numbers.get("steps"), SymInt) else None
    return None


def _arange(
    start: Any, end: SymInt, step: Any, *, dtype: torch.dtype | None = None, device: Any = None, **_: Any
) -> Tensor | None:
    if not isinstance(start, int | float) or not isinstance(step, int | float) or step <= 0:
        return None
    dtype = torch.get_default_dtype() if dtype is None else dtype
    fractions = not float(start).is_integer() or not float(step).is_integer()
    if not fractions or not dtype.is_floating_point:
        return None
    if step == 1:
        count = end - int(start // 1)
    elif float(start).is_integer() and (1 / step).is_integer():
        count = (end - int(start)) * int(1 / step)
    else:
        return None
    return _first(count, dtype, device) * step + start


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
