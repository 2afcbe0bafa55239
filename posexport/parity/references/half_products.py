"""Matrix products of float16 on the CPU, at the speed of float32's.

PyTorch has no fast CPU kernel for them: its own sums in float32 and rounds once, 20 times slower than the product of
float32 matrices. Here the factors, which float32 holds exactly, are multiplied in float32 and the result is rounded:
the same but for the order of the sum.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_aten = torch.ops.aten
#: in inference mode those of several steps come as they were called
_PRODUCTS = {
    _aten.linear.default,
    _aten.matmul.default,
    _aten.conv1d.default,
    _aten.conv2d.default,
    _aten.mm.default,
    _aten.bmm.default,
    _aten.addmm.default,
    _aten.baddbmm.default,
    _aten.mv.default,
    _aten.dot.default,
    _aten.convolution.default,
}


class WideProducts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside the block, products of float16 tensors are computed in float32 and rounded."""

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Part of the protocol of PyTorch's dispatch modes."""
        del types
        if func not in _PRODUCTS or not any(_half(value) for value in args):
            return func(*args, **(kwargs or {}))
        return func(*(value.float() if _half(value) else value for value in args), **(kwargs or {})).half()


def _half(value: object) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.float16
