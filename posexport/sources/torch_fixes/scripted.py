"""Functions by ``torch.jit.script`` run as they are written while a module is traced.

A script runs outside Python, where no mode sees its calls, and a branch by a parameter has no known value.

Reason: a trace follows Python. Seen in 2.13.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from posexport.sources.torch_fixes.patch import patched

_SCRIPTED = torch.jit.ScriptFunction


def without_scripts() -> AbstractContextManager[None]:
    """Inside the block functions are called as their authors wrote them."""
    run: Callable[..., Any] = _SCRIPTED.__call__

    def written(self: Any, *args: Any, **kwargs: Any) -> Any:
        function = getattr(self, "_torchdynamo_inline", None)  # as PyTorch's compiler finds it
        return run(self, *args, **kwargs) if function is None else function(*args, **kwargs)

    return patched(_SCRIPTED, "__call__", written)
