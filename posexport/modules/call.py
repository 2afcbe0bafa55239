"""The one way to call a user's module in PyTorch: its outputs by name, its exceptions with the user's line.

`UserModule` calls with declared inputs, `DrawnCalls` with inputs drawn at sizes, `ExampleCalls` with the user's example
resized.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from posexport.errors import PosexportError
from posexport.system.user_code import is_external, line_of_error, quoted, raised
from posexport.torch_fixes.as_exported import as_exported
from posexport.torch_fixes.default_dtype import computing_in

_CACHE_IS_OURS = (
    "; a model of transformers alone, without an example, gets a KV cache of posexport's; in a module that calls one, "
    "set its config.use_cache = False"
)


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

    ``dtype``: what it computes in, float32 or float64; default: as its first parameter. ``mode`` is entered around its
    forward.

    Raises:
        CallError: the module raised an exception.
        PosexportError: it returned something else than tensors.
    """
    with calling(dtype or computed_dtype(module)), mode or nullcontext():
        return named_outputs(module(**{name: tensor.clone() for name, tensor in tensors.items()}))


def computed_dtype(module: nn.Module) -> torch.dtype:
    """float64 for the copy of a module that the reference is computed with, else float32."""
    parameter = next(module.parameters(), None)
    return torch.float64 if parameter is not None and parameter.dtype == torch.float64 else torch.float32


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


def named_outputs(output: Any) -> dict[str, Tensor]:
    """The output of a module as tensors by name: nested containers are flattened, ``None`` is left out.

    The tensors in ``{"layers": (x, y)}`` are called ``layers.0`` and ``layers.1``, a lone tensor ``output``, the
    tensors of a tuple ``output_0`` and ``output_1``.
    """
    if isinstance(output, Tensor):
        return {"output": output}
    outputs: dict[str, Tensor] = {}
    prefix = "output_" if isinstance(output, tuple | list) and not hasattr(output, "_fields") else ""
    for path, value in _leaves(output, ""):
        name = prefix + path
        if not isinstance(value, Tensor):
            is_cache = type(value).__module__ == "transformers.cache_utils"
            raise PosexportError(
                f"the module must return tensors, alone or in tuples, dicts and dataclasses, got {type(value).__name__}"
                + (f" as {name}" if path else "")
                + (_CACHE_IS_OURS if is_cache else "")
            )
        if name in outputs:
            raise PosexportError(f"the module returned two outputs that are both called {name}; rename one")
        outputs[name] = value
    if not outputs:
        raise PosexportError(f"the module must return at least one tensor, got {type(output).__name__} without any")
    return outputs


def _leaves(output: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The values in nested containers that are no containers, without ``None``, each with its keys joined by dots."""
    items: Any
    if isinstance(output, Mapping):
        items = output.items()
    elif isinstance(output, tuple | list):
        items = zip(getattr(output, "_fields", range(len(output))), output, strict=True)
    elif dataclasses.is_dataclass(output) and not isinstance(output, type):
        items = ((field.name, getattr(output, field.name)) for field in dataclasses.fields(output))
    else:
        if output is not None or not path:
            yield path, output
        return
    for key, value in items:
        yield from _leaves(value, f"{path}.{key}" if path else str(key))
