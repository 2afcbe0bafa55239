"""``F.scaled_dot_product_attention`` takes a flag that is computed from sizes, as ``is_causal=x.shape[1] > 1``.

PyTorch parses the arguments before any function mode sees them, and a symbolic bool is none to its parser. Here it is
decided first, which specialises the graph as a Python branch would.

Issues: pytorch/pytorch 154038, 124707 (closed, unchanged). Seen in 2.13.
"""

from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from posexport.torch_fixes.patch import patched

#: PyTorch's function, as it is outside the block
SDPA = F.scaled_dot_product_attention


def with_decided_flags() -> AbstractContextManager[None]:
    """Inside the block attention takes symbolic flags."""
    return patched(F, "scaled_dot_product_attention", _decided)


def _decided(*args: Any, **kwargs: Any) -> Tensor:
    return SDPA(*map(_as_bool, args), **{name: _as_bool(value) for name, value in kwargs.items()})


def _as_bool(argument: Any) -> Any:
    return bool(argument) if isinstance(argument, torch.SymBool) else argument
