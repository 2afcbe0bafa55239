"""Adaptive average pooling to a grid, as products with the share that every input has in every output.

PyTorch's exporter writes for which elements an example's sizes read one input more: other sizes fail, or are wrong. Of
a grid with None it writes the means of all axes.
Output i of S is the mean of inputs floor(i N / S) to ceil((i + 1) N / S) of N (`torch.nn.AdaptiveAvgPool2d`).

Issue: none is known. Seen in 2.13.

Shape letters: N inputs and S outputs along an axis.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import SymInt, Tensor

#: axes that are pooled, the last ones, by function
_AXES: dict[Callable[..., Any], int] = {F.adaptive_avg_pool1d: 1, F.adaptive_avg_pool2d: 2, F.adaptive_avg_pool3d: 3}


def pooled(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor | None:
    """The means of a call with a dynamic size; None where PyTorch's tracer follows it."""
    axes = _AXES.get(func)
    if axes is None:
        return None
    x, sizes = _bound(*args, **kwargs)
    sizes = [sizes] * axes if isinstance(sizes, int) else list(sizes)
    if not any(isinstance(count, SymInt) for count in x.shape[-axes:]) or all(size == 1 for size in sizes):
        return None
    for axis, size in zip(range(-axes, 0), sizes, strict=True):
        if size == 1:
            x = x.mean(axis, keepdim=True)
        elif size is not None:
            x = (x.movedim(axis, -1) @ _shares(x.shape[axis], size, x).mT).movedim(-1, axis)
    return x


def _bound(input: Any, output_size: Any) -> tuple[Tensor, Any]:  # noqa: A002 (PyTorch's name of the argument)
    return input, output_size


def _shares(count: Any, size: int, x: Tensor) -> Tensor:
    """[S, N]: 1 over the number of inputs of an output where it reads the input, else 0."""
    output_S1 = torch.arange(size, device=x.device)[:, None]
    first_S1 = torch.div(output_S1 * count, size, rounding_mode="floor")
    end_S1 = torch.div((output_S1 + 1) * count + (size - 1), size, rounding_mode="floor")
    input_N = torch.arange(count, device=x.device)
    read_SN = (input_N >= first_S1) & (input_N < end_S1)
    return read_SN.to(x.dtype) / (end_S1 - first_S1).to(x.dtype)
