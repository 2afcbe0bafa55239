"""``x.split(batch)``: as many parts of a size as there are at every size, and not a sequence of unknown length.

PyTorch's exporter writes SplitToSequence of a size that is not a constant, at which its optimizer fails.

Issue: none known. Seen in 2.13 with onnxscript 0.7.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def parts(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Tensor, ...] | None:
    """The result of a call; None for other functions, and for a size that is a number or a list."""
    if func not in (torch.split, Tensor.split) or len(args) < 2 or not isinstance(args[1], torch.SymInt):
        return None
    x, size = args[:2]
    dim = kwargs["dim"] if "dim" in kwargs else args[2] if len(args) > 2 else 0
    return tuple(x.narrow(dim, number * size, size) for number in range(int(x.shape[dim] // size)))
