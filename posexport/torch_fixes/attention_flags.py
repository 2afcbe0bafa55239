"""``F.scaled_dot_product_attention`` takes a flag that is computed from sizes, as ``is_causal=x.shape[1] > 1``.

PyTorch parses the arguments before any function mode sees them, and a symbolic bool is none to its parser. Here it is
decided first, which specialises the graph as a Python branch would. Modules that imported the function by its name
have it among their globals: it is replaced there too.

Issues: pytorch/pytorch 154038, 124707 (closed, unchanged). Seen in 2.13.
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from posexport.torch_fixes.patch import patched

#: modules of Python, PyTorch and this package, which a user's module does not stand in
_OTHERS = ("torch.", "posexport.", "numpy.", "sympy.", "onnx", "transformers.models.")
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
    return [
        (module, name)
        for path, module in list(sys.modules.items())
        if isinstance(module, ModuleType) and not path.startswith(_OTHERS)
        for name, value in list(vars(module).items())
        if value is SDPA
    ]


def _decided(*args: Any, **kwargs: Any) -> Tensor:
    return SDPA(*map(_as_bool, args), **{name: _as_bool(value) for name, value in kwargs.items()})


def _as_bool(argument: Any) -> Any:
    return bool(argument) if isinstance(argument, torch.SymBool) else argument
