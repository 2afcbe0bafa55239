"""``conv2d(x, weight, groups=x.shape[1])``: ONNX has the number of groups as an attribute, so that it is no size.

Issue: none known. Seen in 2.13: the exporter raises a TypeError without a word of the axis.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

#: each convolution, with the position of ``groups`` among its arguments
_GROUPS = {
    torch.conv1d: 6,
    torch.conv2d: 6,
    torch.conv3d: 6,
    torch.conv_transpose1d: 6,
    torch.conv_transpose2d: 6,
    torch.conv_transpose3d: 6,
}


def convolved(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor | None:
    """The result of a call with a size for its groups, of which it makes a number; None for other calls."""
    if func not in _GROUPS:
        return None
    args, kwargs, at = list(args), dict(kwargs), _GROUPS[func]
    if isinstance(kwargs.get("groups"), torch.SymInt):
        kwargs["groups"] = int(kwargs["groups"])
    elif len(args) > at and isinstance(args[at], torch.SymInt):
        args[at] = int(args[at])
    else:
        return None
    out: Tensor = func(*args, **kwargs)
    return out
