"""``F.scaled_dot_product_attention`` takes a flag that is computed from sizes, as ``is_causal=x.shape[1] > 1``.

PyTorch parses the arguments before any function mode sees them, and a symbolic bool is none to its parser. Here it is
decided first, which specialises the graph as a Python branch would. Modules that imported the function by its name
have it among their globals: it is replaced there too.

Issues: pytorch/pytorch 154038, 124707 (closed, unchanged). Seen in 2.13.
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from posexport.base.system.user_code import is_installed, scope_of
from posexport.sources.torch_fixes.patch import patched

#: packages that have no module of a user
_NO_USERS = ("torch.", "posexport.", "numpy.", "sympy.", "onnx", "transformers.models.")
#: PyTorch's function, as it is outside the block
SDPA = F.scaled_dot_product_attention


@contextmanager
def with_decided_flags() -> Iterator[None]:
    """Inside the block attention takes symbolic flags."""
    with patched(F, "scaled_dot_product_attention", _decided), ExitStack() as stack:
        for module, name in _importers():
            stack.enter_context(patched(module, name, _decided))
        yield


def _importers() -> list[tuple[ModuleType, str]]:
    """The modules that imported PyTorch's function, with its name there."""
    installed, of_users = _by_origin(tuple(sys.modules))
    return [*installed, *(pair for module in of_users for pair in _names_in(module))]


@lru_cache(maxsize=1)
def _by_origin(names: tuple[str, ...]) -> tuple[list[tuple[ModuleType, str]], list[ModuleType]]:
    """Installed modules with the function, and a user's own, which may change their globals from call to call."""
    loaded = [sys.modules.get(name) for name in names if not name.startswith(_NO_USERS)]
    # isinstance() would ask a lazy one for its class
    modules = [module for module in loaded if module is not None and issubclass(type(module), ModuleType)]
    installed, of_users = list[ModuleType](), list[ModuleType]()
    for module in modules:
        (installed if is_installed(module) else of_users).append(module)
    return [pair for module in installed for pair in _names_in(module)], of_users


def _names_in(module: ModuleType) -> list[tuple[ModuleType, str]]:
    return [(module, name) for name, value in list(scope_of(module).items()) if value is SDPA]


def _decided(*args: Any, **kwargs: Any) -> Tensor:
    return SDPA(*map(_as_bool, args), **{name: _as_bool(value) for name, value in kwargs.items()})


def _as_bool(argument: Any) -> Any:
    return bool(argument) if isinstance(argument, torch.SymBool) else argument
