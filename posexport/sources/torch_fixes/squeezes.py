"""``x.squeeze(1)`` of an axis that is longer, and ``x.squeeze()`` beside axes that vary.

PyTorch leaves an axis whose size is not 1. Its exporter writes Squeeze all the same, which ONNX refuses; without an
axis the graph would lose a batch of one row as well.

Issue: none known. Seen in 2.13 with onnxscript 0.7.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def squeezed(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor | None:
    """The result of a call, with the axes that are 1 in the trace; None for other functions."""
    if func not in (torch.squeeze, Tensor.squeeze) or not isinstance(args[0], Tensor) or set(kwargs) - {"dim"}:
        return None
    x, *rest = args
    dims = kwargs.get("dim", rest[0] if rest else range(x.dim()))
    dims = dims if isinstance(dims, Sequence) else (dims,)
    if not all(isinstance(dim, int) for dim in dims) or (dims and not x.dim()):
        return None
    ones = tuple(sorted({dim % x.dim() for dim in dims if type(x.shape[dim]) is int and x.shape[dim] == 1}))
    return torch.squeeze(x, ones) if ones else x.view_as(x)
