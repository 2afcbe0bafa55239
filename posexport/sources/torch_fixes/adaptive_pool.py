"""Adaptive pooling to a grid: averages as products with the share that every input has in every output, and maxima.

PyTorch's exporter writes for which elements an example's sizes read one input more: other sizes fail, or are wrong. Of
a grid with None it writes the means of all axes. It has no maxima of a dynamic size.
Output i of S is that of inputs floor(i N / S) to ceil((i + 1) N / S) of N (`torch.nn.AdaptiveAvgPool2d`).

Issue: none is known. Seen in 2.13.

Shape letters: N inputs and S outputs along an axis.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import SymInt, Tensor

#: axes that are pooled, the last ones, by function
_AVERAGES: dict[Callable[..., Any], int] = {
    F.adaptive_avg_pool1d: 1,
    F.adaptive_avg_pool2d: 2,
    F.adaptive_avg_pool3d: 3,
}
_MAXIMA: dict[Callable[..., Any], int] = {
    F.adaptive_max_pool1d: 1,
    F.adaptive_max_pool2d: 2,
    F.adaptive_max_pool3d: 3,
}
#: arguments of a call by place that asks for no indices
_WITHOUT_INDICES = 2


def pooled(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor | None:
    """The means or maxima of a call with a dynamic size; None where PyTorch's tracer follows it."""
    axes = {**_AVERAGES, **_MAXIMA}.get(func)
    if axes is None or kwargs.get("return_indices") or len(args) > _WITHOUT_INDICES:
        return None
    x, sizes = _bound(*args, **{name: value for name, value in kwargs.items() if name != "return_indices"})
    sizes = [sizes] * axes if isinstance(sizes, int) else list(sizes)
    if not any(isinstance(count, SymInt) for count in x.shape[-axes:]) or all(size == 1 for size in sizes):
        return None
    one, several = (_mean, _means) if func in _AVERAGES else (_maximum, _maxima)
    for axis, size in zip(range(-axes, 0), sizes, strict=True):
        if size is not None:
            x = one(x, axis) if size == 1 else several(x.movedim(axis, -1), size).movedim(-1, axis)
    return x


def _bound(input: Any, output_size: Any) -> tuple[Tensor, Any]:  # noqa: A002 (PyTorch's name of the argument)
    return input, output_size


def _mean(x: Tensor, axis: int) -> Tensor:
    return x.mean(axis, keepdim=True)


def _maximum(x: Tensor, axis: int) -> Tensor:
    return x.amax(axis, keepdim=True)


def _means(x: Tensor, size: int) -> Tensor:
    """Along the last axis; each is a product with the share that an input has in it."""
    first_S1, end_S1 = _ends(x.shape[-1], size, x)
    return x @ (_read(x, first_S1, end_S1).to(x.dtype) / (end_S1 - first_S1).to(x.dtype)).mT


def _maxima(x: Tensor, size: int) -> Tensor:
    return x[..., None, :].masked_fill(~_read(x, *_ends(x.shape[-1], size, x)), -torch.inf).amax(-1)


def _ends(count: Any, size: int, x: Tensor) -> tuple[Tensor, Tensor]:
    """[S, 1]: the first input of each output, and the one behind its last."""
    output_S1 = torch.arange(size, device=x.device)[:, None]
    first_S1 = torch.div(output_S1 * count, size, rounding_mode="floor")
    return first_S1, torch.div((output_S1 + 1) * count + (size - 1), size, rounding_mode="floor")


def _read(x: Tensor, first_S1: Tensor, end_S1: Tensor) -> Tensor:
    """[S, N]: which inputs each output is made of."""
    input_N = torch.arange(x.shape[-1], device=x.device)
    return (input_N >= first_S1) & (input_N < end_S1)
