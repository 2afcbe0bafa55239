"""``torch.cdist`` in elementary operations: PyTorch's exporter has none for it where a size is dynamic.

Issue: none known. Seen in 2.13.

Shape letters: P rows of the first tensor, R rows of the second, M features.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

_EUCLIDEAN, _BY_PRODUCT = 2.0, "use_mm_for_euclid_dist"


def distances(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor | None:
    """The distances [..., P, R] of a call of ``torch.cdist``; None for other functions."""
    return _distances(*args, **kwargs) if func is torch.cdist else None


def _distances(x1: Tensor, x2: Tensor, p: float = _EUCLIDEAN, compute_mode: str | None = None) -> Tensor:
    """By differences, exact where rows are close; by a product, in less memory, where the caller asks for it."""
    if p == _EUCLIDEAN and compute_mode == _BY_PRODUCT:
        squares_P1, squares_R1 = (x.square().sum(-1, keepdim=True) for x in (x1, x2))
        return (squares_P1 + squares_R1.mT - 2 * x1 @ x2.mT).clamp(min=0).sqrt()
    apart_PRM = (x1[..., :, None, :] - x2[..., None, :, :]).abs()
    if p == 0:
        return (apart_PRM != 0).to(x1.dtype).sum(-1)
    if p == float("inf"):
        return apart_PRM.amax(-1)
    if p == 1:
        return apart_PRM.sum(-1)
    return apart_PRM.square().sum(-1).sqrt() if p == _EUCLIDEAN else apart_PRM.pow(p).sum(-1).pow(1 / p)
