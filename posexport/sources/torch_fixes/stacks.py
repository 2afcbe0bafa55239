"""``torch.column_stack``, ``hstack``, ``vstack`` and ``dstack`` as a concatenation of one element type.

PyTorch's exporter writes a sequence of tensors, which ONNX refuses where their types differ: PyTorch promotes them, as
numbers and one-hot integers.

Issue: none known. Seen in 2.13 with onnxscript 0.7.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

#: what each function does before it concatenates, and the axis
_STACKS: dict[Callable[..., Any], tuple[Callable[[Tensor], Tensor], int]] = {
    torch.hstack: (torch.atleast_1d, 1),
    torch.vstack: (torch.atleast_2d, 0),
    torch.row_stack: (torch.atleast_2d, 0),
    torch.dstack: (torch.atleast_3d, 2),
    torch.column_stack: (lambda x: x if x.dim() > 1 else x.reshape(-1, 1), 1),
}


def stacked(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor | None:
    """The result of a call; None for other functions, and where it writes to a tensor."""
    if func not in _STACKS or kwargs or len(args) != 1:
        return None
    raised, axis = _STACKS[func]
    tensors = [raised(tensor) for tensor in args[0]]
    dtype = functools.reduce(torch.promote_types, (tensor.dtype for tensor in tensors))
    return torch.cat([tensor.to(dtype) for tensor in tensors], min(axis, tensors[0].dim() - 1))
