"""``max_pool1d`` as ``max_pool2d`` of one row: without gradients its own kernel makes a constant of the length.

Issue: none known. Seen in 2.13.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import SymInt, Tensor


def maxima(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor | None:
    """The maxima of a call of a dynamic length; None for other calls, and where their places are asked for."""
    if func not in (F.max_pool1d, torch.max_pool1d) or kwargs.get("return_indices"):
        return None
    return _maxima(*args, **kwargs)


def _maxima(
    input: Tensor,  # noqa: A002 (PyTorch's name of the argument)
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor | None:
    length: Any = input.shape[-1]
    if return_indices or not isinstance(length, SymInt):
        return None
    size, steps, pads, apart = map(_number, (kernel_size, stride or kernel_size, padding, dilation))
    rows = F.max_pool2d(input.unsqueeze(-2), (1, size), (1, steps), (0, pads), (1, apart), ceil_mode)
    return rows.squeeze(-2)


def _number(value: Any) -> int:
    return int(value[0] if isinstance(value, tuple | list) else value)
