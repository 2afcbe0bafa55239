"""``nn.EmbeddingBag`` of a matrix of ids, as a lookup and a sum: PyTorch's exporter writes a loop over all bags.

Issue: none known. Seen in 2.13.

Shape letters: B bags, N ids of each.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_SIGNATURE = inspect.signature(F.embedding_bag)
_MATRIX = 2


def bags(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor | None:
    """The bags of a call with a matrix of ids; None for other calls."""
    if func is not F.embedding_bag:
        return None
    bound = _SIGNATURE.bind(*args, **kwargs)
    bound.apply_defaults()
    ids_BN, table, mode = (bound.arguments[name] for name in ("input", "weight", "mode"))
    padding, scales_BN = bound.arguments["padding_idx"], bound.arguments["per_sample_weights"]
    if ids_BN.dim() != _MATRIX or bound.arguments["max_norm"] is not None:
        return None
    rows: Tensor = F.embedding(ids_BN, table)
    if scales_BN is not None:
        rows = rows * scales_BN[..., None]
    if padding is None:
        return rows.amax(1) if mode == "max" else rows.sum(1) if mode == "sum" else rows.mean(1)
    kept_BN1 = (ids_BN != padding % table.shape[0])[..., None]
    if mode == "max":
        return torch.where(kept_BN1.any(1), rows.masked_fill(~kept_BN1, -torch.inf).amax(1), 0.0)
    total: Tensor = (rows * kept_BN1).sum(1)
    return total if mode == "sum" else total / kept_BN1.sum(1).clamp(min=1)
