"""``torch.where`` with a condition of bytes, as masks were before PyTorch had booleans.

PyTorch computes it; its tracer ends with ``expected predicate to be bool, got torch.uint8``.

Issue: none known. Seen in 2.13.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def chosen(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor | None:
    """The result of a call with bytes; None for other calls."""
    if func is not torch.where or len(args) < 2 or not isinstance(args[0], Tensor) or args[0].dtype != torch.uint8:
        return None
    condition, *values = args
    result: Any = torch.where(condition != 0, *values, **kwargs)
    return result  # type: ignore[no-any-return]
