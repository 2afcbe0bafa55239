"""``x.squeeze(1)`` of an axis that is longer than 1.

PyTorch leaves the axis; its exporter writes a Squeeze, which ONNX refuses.

Issue: none known. Seen in 2.13 with onnxscript 0.7.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def squeezed(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor | None:
    """The result of a call with the axes that are 1 in the trace; None for other functions, and without axes."""
    if func not in (torch.squeeze, Tensor.squeeze) or not isinstance(args[0], Tensor) or not args[0].dim():
        return None
    x, *rest = args
    dims = kwargs.get("dim", rest[0] if len(rest) == 1 else rest)
    dims = tuple(dims) if isinstance(dims, Sequence) else (dims,)
    if not dims or not all(isinstance(dim, int) for dim in dims):
        return None
    ones = tuple(dim for dim in dims if type(x.shape[dim]) is int and x.shape[dim] == 1)
    return torch.squeeze(x, ones) if ones else x.view_as(x)
