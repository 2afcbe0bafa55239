"""``x.as_strided`` with sizes and strides of dynamic axes, by an index of the elements.

PyTorch's tracer asks for strides, which symbolic tensors do not tell there. A relative shift is written so.

Issue: none known. Seen in 2.13.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import SymInt, Tensor

_ARGUMENTS = "size", "stride", "storage_offset"


def strided(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor | None:
    """The elements of a call on a vector; None for other functions, and where all are numbers."""
    if func not in (torch.as_strided, Tensor.as_strided) or args[0].dim() != 1:
        return None
    given = {**dict(zip(_ARGUMENTS, args[1:], strict=False)), **kwargs}
    size, stride, offset = given["size"], given["stride"], given.get("storage_offset") or 0
    if not any(isinstance(number, SymInt) for number in (*size, *stride, offset)):
        return None
    index: Any = offset
    for axis, (count, step) in enumerate(zip(size, stride, strict=True)):
        places = torch.arange(count, device=args[0].device) * step
        index = index + places.view(-1, *[1] * (len(size) - 1 - axis))
    return torch.ops.aten.index.Tensor(args[0], [index])  # type: ignore[no-any-return]
