"""Indexing by tensors that ``torch.vmap`` maps over, as an operator that PyTorch's tracer can follow.

The tracer asks a scalar index for its value with ``item()``, which vmap does not have, and makes constants of new axes.
The masks of transformers 4 are indexed so.

Issue: pytorch/pytorch 158540 (its pull request 186894 is not in 2.13). Seen in 2.13.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_batchedtensor


def indexed(func: Callable[..., Any], args: Sequence[Any]) -> Tensor | None:
    """``table[index]`` where the index consists of tensors, some of them mapped, between new axes (None); else None."""
    if func is not Tensor.__getitem__:
        return None
    index = list(args[1]) if isinstance(args[1], tuple) else [args[1]]
    at = [place for place, element in enumerate(index) if isinstance(element, Tensor)]
    simple = all(element is None or isinstance(element, Tensor) for element in index)
    if not simple or not any(is_batchedtensor(index[place]) for place in at) or at[-1] - at[0] >= len(at):
        return None
    tensors = index[at[0] : at[-1] + 1]
    rows: Tensor = torch.ops.aten.index.Tensor(args[0], tensors)
    for _ in index[: at[0]]:
        rows = rows.unsqueeze(0)
    after = at[0] + max(tensor.ndim for tensor in tensors)
    for _ in index[at[-1] + 1 :]:
        rows = rows.unsqueeze(after)
    return rows
