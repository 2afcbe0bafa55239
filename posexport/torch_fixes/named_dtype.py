"""What a module's forward asks for in its code: a dtype by name, or the default one.

A module in float64 says ``.float()`` and ``dtype=torch.float32`` all the same. Taken at its word, it rounds in the
middle of the reference, or multiplies float32 by float64, which PyTorch refuses.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_WIDE = {torch.float32: torch.float64, torch.complex64: torch.complex128}
_WIDENED = {Tensor.float: Tensor.double, Tensor.cfloat: Tensor.cdouble}  # type: ignore[attr-defined]


@contextmanager
def computing_in(dtype: torch.dtype) -> Iterator[None]:
    """Calls of a module in ``dtype``, float32 or float64, made inside the block.

    ``torch.zeros(3)`` gives ``dtype``; in float64, so does what asks for float32 by name.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with ExitStack() as stack:
            if dtype == torch.float64:
                stack.enter_context(_Widened())
            yield
    finally:
        torch.set_default_dtype(before)


class _Widened(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = {key: _widened(value) for key, value in (kwargs or {}).items()}
        return _WIDENED.get(func, func)(*map(_widened, args), **kwargs)


def _widened(argument: Any) -> Any:
    return _WIDE.get(argument, argument) if isinstance(argument, torch.dtype) else argument
