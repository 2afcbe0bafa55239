"""``conv2d(x, weight, groups=x.shape[1])``: ONNX has the number of groups as an attribute, so that it is no size.

One filter that is expanded to all channels, as of a resampling, is computed on the channels as rows of a batch, so that
their number stays a size. For other weights it is made a number.

Issue: none known. Seen in 2.13: the exporter raises a TypeError without a word of the axis.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

#: each convolution, with the names of its arguments after the weight
_OTHERS = ("bias", "stride", "padding", "dilation", "groups")
_TRANSPOSED = ("bias", "stride", "padding", "output_padding", "groups", "dilation")
_ARGUMENTS = {
    torch.conv1d: _OTHERS,
    torch.conv2d: _OTHERS,
    torch.conv3d: _OTHERS,
    torch.conv_transpose1d: _TRANSPOSED,
    torch.conv_transpose2d: _TRANSPOSED,
    torch.conv_transpose3d: _TRANSPOSED,
}


def convolved(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor | None:
    """The result of a call with a size for its groups; None for other calls."""
    if func not in _ARGUMENTS:
        return None
    call = dict(zip(("input", "weight", *_ARGUMENTS[func]), args, strict=False)) | dict(kwargs)
    if not isinstance(call.get("groups"), torch.SymInt):
        return None
    x, weight = call["input"], call["weight"]
    is_one_filter = weight.shape[1] == 1 and weight.stride(0) == 0 and call.get("bias") is None
    if not is_one_filter or x.dim() != weight.dim():
        return func(**call | {"groups": int(call["groups"])})  # type: ignore[no-any-return]
    rows = x.reshape(-1, 1, *x.shape[2:])
    out = func(**call | {"input": rows, "weight": weight[:1], "groups": 1})
    return out.reshape(*x.shape[:2], *out.shape[2:])  # type: ignore[no-any-return]
