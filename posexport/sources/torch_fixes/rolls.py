"""``torch.roll`` by a size, as in ``torch.fft.fftshift``, as a concatenation of two parts.

The exporter writes the shifts of ``aten.roll`` as an attribute, which holds numbers only.

Reason: "Unsupported attribute type: list" for ``torch.fft.fftshift`` over a dynamic axis. Seen in 2.13.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import SymInt, Tensor


def rolled(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor | None:
    """The result of such a call; None for others."""
    kwargs = {"x" if name == "input" else name: value for name, value in kwargs.items()}
    if func in (torch.roll, Tensor.roll):
        return _by_shifts(*args, **kwargs)
    if func in (torch.fft.fftshift, torch.fft.ifftshift):
        return _centred(*args, **kwargs, back=func is torch.fft.ifftshift)
    return None


def _by_shifts(x: Tensor, shifts: Any, dims: Any = None) -> Tensor | None:
    all_shifts, axes = _listed(shifts), [] if dims is None else _listed(dims)
    if len(axes) != len(all_shifts) or not any(isinstance(shift, SymInt) for shift in all_shifts):
        return None
    for axis, shift in zip(axes, all_shifts, strict=True):
        x = _parts_exchanged(x, axis, (x.shape[axis] - shift) % x.shape[axis])
    return x


def _centred(x: Tensor, dim: Any = None, *, back: bool) -> Tensor | None:
    axes = list(range(x.dim())) if dim is None else _listed(dim)
    if not any(isinstance(x.shape[axis], SymInt) for axis in axes):
        return None
    for axis in axes:
        size = x.shape[axis]
        x = _parts_exchanged(x, axis, size // 2 if back else (size + 1) // 2)
    return x


def _parts_exchanged(x: Tensor, axis: int, first: Any) -> Tensor:
    """The elements from the index ``first`` on, then those before it."""
    return torch.cat([x.narrow(axis, first, x.shape[axis] - first), x.narrow(axis, 0, first)], axis)


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]
