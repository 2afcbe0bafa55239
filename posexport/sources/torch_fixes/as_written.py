"""Functions of packages run as they are written while a module is traced: no scripts, no tensors of earlier calls.

A function by ``torch.jit.script`` runs outside Python, where no mode sees its calls and a branch has no known value.
One by ``functools.lru_cache`` returns the tensors of an earlier trace, which hold no values.

Reason: a trace follows Python. Seen in 2.13.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import _lru_cache_wrapper, wraps
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from posexport.base.system.user_code import is_user_module
from posexport.sources.torch_fixes.patch import patched

_SCRIPTED = torch.jit.ScriptFunction


@contextmanager
def with_functions_as_written() -> Iterator[None]:
    """Inside the block functions are called as their authors wrote them."""
    run: Callable[..., Any] = _SCRIPTED.__call__

    def written(self: Any, *args: Any, **kwargs: Any) -> Any:
        function = getattr(self, "_torchdynamo_inline", None)  # as PyTorch's compiler finds it
        return run(self, *args, **kwargs) if function is None else function(*args, **kwargs)

    with ExitStack() as stack:
        stack.enter_context(patched(_SCRIPTED, "__call__", written))
        for module in [module for module in list(sys.modules.values()) if is_user_module(module)]:
            for name, value in list(vars(module).items()):
                if isinstance(value, _lru_cache_wrapper):
                    stack.enter_context(patched(module, name, _anew(value)))
        yield


def _anew(cached: Any) -> Callable[..., Any]:
    """``cached``, but tensors are made anew."""

    @wraps(cached)
    def called(*args: Any, **kwargs: Any) -> Any:
        value = cached.__wrapped__(*args, **kwargs)
        made = any(isinstance(leaf, Tensor) for leaf in tree_leaves(value))
        return value if made else cached(*args, **kwargs)

    return called
