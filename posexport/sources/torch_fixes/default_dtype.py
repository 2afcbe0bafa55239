"""A module that is called in float64 computes in float64, whatever dtype its code names.

``.float()``, ``dtype=torch.float32`` and ``torch.zeros(3)`` stay float32 in a module that was cast by ``.double()``,
and so do tensors that are no parameters or buffers of it. The reference would be rounded in the middle, or multiply
float32 by float64, which PyTorch refuses. This is how PyTorch is meant to work, but a proof in float64 cannot use it.

Issues: pytorch/pytorch 144673, 120819 (the default dtype is the process's, not a thread's). Seen in 2.13.
"""

import operator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from posexport.base.system.one_at_a_time import ONE_AT_A_TIME
from posexport.sources.torch_fixes.convolutions import ConvolutionsInParts

#: products that are operators of Python and write to nothing
_OPERATORS = ("__matmul__", "__rmatmul__")
_WIDE = {torch.float32: torch.float64, torch.complex64: torch.complex128}
_WIDENED = {Tensor.float: Tensor.double, Tensor.cfloat: Tensor.cdouble}  # type: ignore[attr-defined]


@contextmanager
def computing_in(dtype: torch.dtype) -> Iterator[None]:
    """Inside the block ``dtype``, float32 or float64, is the default.

    In float64, float32 by name is float64 too, and convolutions are computed in parts.
    """
    with ONE_AT_A_TIME:
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            if dtype == torch.float64:
                with _Widened(), ConvolutionsInParts():  # type: ignore[no-untyped-call]
                    yield
            else:
                yield
        finally:
            torch.set_default_dtype(before)


class _Widened(TorchFunctionMode):
    """Calls that name float32 or complex64 name the type of twice the width instead.

    A call that refuses tensors of two widths gets all in the larger one, unless it writes to the first.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = {key: _widened(value) for key, value in (kwargs or {}).items()}
        func, args = _WIDENED.get(func, func), tuple(map(_widened, args))
        try:
            return func(*args, **kwargs)
        except RuntimeError:
            wide = tuple(map(_of_one_width, args))
            name = getattr(func, "__name__", "_")
            writes = name.endswith("_") and name not in _OPERATORS
            if writes or all(map(operator.is_, wide, args)):
                raise
            return func(*wide, **kwargs)


def _widened(argument: Any) -> Any:
    return _WIDE.get(argument, argument) if isinstance(argument, torch.dtype) else argument


def _of_one_width(argument: Any) -> Any:
    """A tensor, or those of a list, in float64."""
    if isinstance(argument, list | tuple):
        return type(argument)(map(_of_one_width, argument)) if type(argument) in (list, tuple) else argument
    wide = _WIDE.get(argument.dtype) if isinstance(argument, Tensor) else None
    return argument if wide is None else argument.to(wide)
