"""The one way to call a user's module in PyTorch: its outputs by name, its exceptions with the user's line.

`UserModule` calls with declared inputs, `DrawnCalls` with inputs drawn at sizes, `ExampleCalls` with the user's example
resized.
"""

import itertools
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn

from posexport.base.system.user_code import is_external, line_of_error, quoted, raised
from posexport.errors import PosexportError
from posexport.modules.returned import named_outputs
from posexport.sources.torch_fixes.as_exported import as_exported
from posexport.sources.torch_fixes.default_dtype import computing_in
from posexport.sources.torch_fixes.dtype_tables import with_wide_entries
from posexport.sources.torch_fixes.global_tables import with_tables_kept


class CallError(Exception):
    """A user's module raised ``error``; the message has its text and the user's line."""

    def __init__(self, error: BaseException) -> None:
        self.error, self._line = error, line_of_error(error)
        super().__init__(self.sentence())

    def sentence(self, where: str = "") -> str:
        """``the module raised ValueError('too long') at length 9 (model.py line 12: `x + bias`)``."""
        return f"the module raised {raised(self.error)}{where and f' {where}'}{self.line}"

    @property
    def line(self) -> str:
        """The user's line in brackets; empty where none is known."""
        return f" ({self._line})" if self._line else ""

    @property
    def quoted(self) -> str:
        """The exception's class and message."""
        return f"{type(self.error).__name__}: {quoted(self.error)}"


def call(
    module: nn.Module,
    tensors: Mapping[str, Tensor],
    dtype: torch.dtype | None = None,
    mode: AbstractContextManager[object] | None = None,
) -> dict[str, Tensor]:
    """The outputs of ``module`` for inputs by name, which it may write to.

    ``dtype``: what it computes in, float32 or float64; default: as its first parameter, or the first real input of a
    module without any. ``mode`` is entered around its forward.

    Raises:
        CallError: the module raised an exception.
        PosexportError: it returned something else than tensors.
    """
    dtype = dtype or computed_dtype(module, tensors)
    with calling(dtype), with_tables_kept(module), with_wide_entries(module, dtype), mode or nullcontext():
        return named_outputs(module(**{name: tensor.clone() for name, tensor in tensors.items()}))


def computed_dtype(module: nn.Module, tensors: Mapping[str, Tensor] = {}) -> torch.dtype:
    """float64 for the copy of a module that the reference is computed with, else float32.

    A module without parameters computes in what its real inputs ``tensors`` have.
    """
    real = (tensor for tensor in tensors.values() if tensor.is_floating_point())
    first = next(itertools.chain(module.parameters(), real), None)
    return torch.float64 if first is not None and first.dtype == torch.float64 else torch.float32


@contextmanager
def calling(dtype: torch.dtype = torch.float32) -> Iterator[None]:
    """PyTorch as it is for every call of a user's module, which computes in ``dtype``.

    Raises:
        CallError: the block raised an exception. Errors of posexport, of the machine and Ctrl-C pass unchanged.
    """
    try:
        with torch.no_grad(), computing_in(dtype), as_exported():
            yield
    except BaseException as err:
        if isinstance(err, PosexportError) or is_external(err):
            raise
        raise CallError(err) from err
