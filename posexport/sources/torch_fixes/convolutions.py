"""Convolutions in float64 in little memory.

PyTorch copies what each output of a convolution in float64 reads, side by side, for all rows of a batch at once: 27
times the input for a kernel of 3 by 3 by 3. A row's outputs depend on that row alone, and an output on few places of
the first axis, so that parts are computed one after the other.

Issue: none known. Seen in 2.13.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_aten = torch.ops.aten
#: in inference mode convolutions arrive as they were called
_CALLED = {_aten.conv1d.default, _aten.conv2d.default, _aten.conv3d.default}
#: bytes of the copies of a part
_PART = 1 << 26


class ConvolutionsInParts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside the block convolutions in float64 that copy much are computed in parts."""

    supports_higher_order_operators = True

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Part of the protocol of PyTorch's dispatch modes."""
        del types
        kwargs = kwargs or {}
        if args and isinstance(args[0], Tensor) and args[0].dtype == torch.float64 and not kwargs:
            if func in _CALLED and args[0].dim() == args[1].dim():
                return _in_parts(*args)
            if func is _aten.convolution.default and not args[6]:
                x, weight, bias, stride, padding, dilation, _, _, groups = args
                return _in_parts(x, weight, bias, stride, padding, dilation, groups)
        return func(*args, **kwargs)


def _in_parts(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sequence[int] = (1,),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    groups: int = 1,
) -> Tensor:
    axes = x.dim() - 2
    stride, padding, dilation = ([*each] * (axes // len(each)) for each in (stride, padding, dilation))
    spans = [(kernel - 1) * step + 1 for kernel, step in zip(weight.shape[2:], dilation, strict=True)]
    sizes = [
        (size + 2 * pad - span) // by + 1
        for size, pad, span, by in zip(x.shape[2:], padding, spans, stride, strict=True)
    ]
    copied = x.element_size() * x.shape[1] * math.prod(weight.shape[2:]) * math.prod(sizes)
    if copied * len(x) <= _PART or not len(x) or min(sizes) < 1:
        return _convolution(x, weight, bias, stride, padding, dilation, groups)
    most = max(1, _PART * sizes[0] // copied)
    result = x.new_empty((len(x), len(weight), *sizes))
    for row, outputs in zip(torch.split(x, 1), torch.split(result, 1), strict=True):
        if most >= sizes[0]:
            outputs.copy_(_convolution(row, weight, bias, stride, padding, dilation, groups))
            continue
        padded = torch.nn.functional.pad(row, [0, 0] * (axes - 1) + [padding[0], padding[0]])
        for start in range(0, sizes[0], most):
            count = min(most, sizes[0] - start)
            read = padded.narrow(2, start * stride[0], (count - 1) * stride[0] + spans[0])
            part = _convolution(read, weight, bias, stride, [0, *padding[1:]], dilation, groups)
            outputs.narrow(2, start, count).copy_(part)
    return result


def _convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    result: Tensor = _aten.convolution(x, weight, bias, stride, padding, dilation, False, [0] * len(stride), groups)
    return result
