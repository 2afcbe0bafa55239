"""Masks as PyTorch's attention takes them, as posexport's: a number to add, and which queries see any key.

A mask is bool (True keeps) or is added to the scores, and is broadcast to [B, H, T, S]. What PyTorch drops by -inf is
dropped by `lowest`, so that no score is infinite; a query without any key reads zeros, as PyTorch has it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from posexport.nn.attention import lowest


@dataclass(frozen=True)
class Added:
    """``mask``: [B, 1, 1, S] or [B or 1, H or 1, T, S]. ``sees_any``: bool [B or 1, H or 1, T or 1]."""

    mask: Tensor
    sees_any: Tensor


def added(masks: Sequence[Tensor], q_BHTD: Tensor, keys: int) -> Added | None:
    """All ``masks`` together; None where there are none."""
    if not masks:
        return None
    shaped = [_of_four_axes(mask, keys) for mask in masks]
    kept = reduce(torch.logical_and, [_kept(mask) for mask in shaped])
    numbers = [_number(mask, q_BHTD) for mask in shaped]
    mask = reduce(torch.add, numbers)
    batch, heads, queries, _ = mask.shape
    if queries == 1 and heads == 1:
        if batch == 1:
            mask = mask.expand(q_BHTD.shape[0], 1, 1, keys)
    elif queries == 1:
        mask = mask.expand(batch, heads, q_BHTD.shape[2], keys)
    return Added(mask, kept.any(-1))


def _of_four_axes(mask: Tensor, keys: int) -> Tensor:
    """[B or 1, H or 1, T or 1, S]; an axis that the module expanded has size 1 again."""
    mask = mask[(None,) * (4 - mask.ndim)]
    for axis, stride in enumerate(mask.stride()):
        if stride == 0:
            mask = mask.narrow(axis, 0, 1)
    return mask.expand(*mask.shape[:3], keys)


def _kept(mask: Tensor) -> Tensor:
    return mask if mask.dtype == torch.bool else mask > -torch.inf


def _number(mask: Tensor, like: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(like.dtype).clamp(min=lowest(like.dtype))
    return torch.where(mask, torch.zeros((), dtype=like.dtype, device=like.device), lowest(like.dtype))
