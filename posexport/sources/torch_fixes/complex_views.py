"""Functions that rearrange complex tensors, computed on their real and imaginary parts.

PyTorch's exporter translates arithmetic of complex numbers, and few of the functions that only move elements. The parts
are a last axis of 2, which these functions do not touch.

Issue: pytorch/pytorch 126972. Seen in 2.13.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

#: functions of a tensor and axes, by the number of axes that they add
_OF_AXES = {torch.unsqueeze: 1, Tensor.unsqueeze: 1, torch.select: 0, Tensor.select: 0}
_OF_AXES |= {torch.index_select: 0, Tensor.index_select: 0}

#: products of a tensor and a number, as ``imaginary * 1.0j``
_PRODUCTS = (torch.mul, torch.multiply, Tensor.mul, Tensor.multiply, Tensor.__mul__, Tensor.__rmul__)
#: sums of elements by an index of their shape
_SUMS = (torch.scatter_add, Tensor.scatter_add, Tensor.scatter_add_)
#: norms of vectors, which are those of the absolute values
_NORMS = (torch.norm, Tensor.norm, torch.linalg.vector_norm)

#: what `F.pad` does without, and calls itself with
_OF_PAD = {"mode": ("constant",), "value": (None, 0)}


def called(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """``func(*args, **kwargs)``, on the parts where the first argument is complex and ``func`` moves elements."""
    if func is F.pad:
        kwargs = {name: value for name, value in kwargs.items() if value not in _OF_PAD[name]}
    if func in _PRODUCTS and _is_real(args) and isinstance(args[1], complex):
        parts = [args[0] * args[1].real, args[0] * args[1].imag]
        return torch.view_as_complex(torch.stack(parts, -1))
    if func is torch.zeros and args and isinstance(dtype := kwargs.get("dtype"), torch.dtype) and dtype.is_complex:
        sizes = args[0] if isinstance(args[0], Sequence) else args
        return torch.view_as_complex(torch.zeros(*sizes, 2, **{**kwargs, "dtype": dtype.to_real()}))
    is_complex = bool(args) and isinstance(args[0], Tensor) and args[0].is_complex()
    if is_complex and func in _NORMS:
        return func(args[0].abs(), *args[1:], **kwargs)
    return _moved(func, *args) if is_complex and not kwargs else func(*args, **kwargs)


def _moved(func: Callable[..., Any], tensor: Tensor, *others: Any) -> Any:
    """``func`` on the parts of ``tensor`` where it moves elements."""
    rest = list(others)
    if func in _SUMS:
        return _scattered(func, tensor, *rest)
    if func is Tensor.__setitem__ and isinstance(rest[1], Tensor):
        torch.view_as_real(tensor)[_index(rest[0])] = torch.view_as_real(rest[1].to(tensor.dtype))
        return None
    if func is Tensor.__getitem__:
        rest = [_index(rest[0])]
    elif func in _OF_AXES:
        axis = rest[0]
        rest[0] = axis if axis >= 0 else axis + tensor.ndim + _OF_AXES[func]
    elif func is Tensor.expand:
        sizes = rest[0] if isinstance(rest[0], Sequence) else rest
        rest = [*sizes, 2]
    elif func is torch.zeros_like:
        pass
    elif func is F.pad:
        rest[0] = [0, 0, *rest[0]]
    else:
        return func(tensor, *rest)
    return torch.view_as_complex(func(torch.view_as_real(tensor), *rest))


def _index(index: Any) -> tuple[Any, ...]:
    """An index of a complex tensor as one of its parts."""
    index = index if isinstance(index, tuple) else (index,)
    return (*index, slice(None)) if any(element is Ellipsis for element in index) else index


def _scattered(func: Callable[..., Any], tensor: Tensor, axis: int, index: Tensor, source: Tensor) -> Tensor:
    index = index.unsqueeze(-1).expand(*index.shape, 2)
    parts = func(torch.view_as_real(tensor), axis % tensor.ndim, index, torch.view_as_real(source))
    return tensor if func is Tensor.scatter_add_ else torch.view_as_complex(parts)


def _is_real(args: Sequence[Any]) -> bool:
    return len(args) == 2 and isinstance(args[0], Tensor) and args[0].is_floating_point()
