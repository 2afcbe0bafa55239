"""Converts masks of PyTorch's attention to posexport's: a term to add, and which queries see any key.

A mask is bool (True keeps) or is added to the scores, and is broadcast to [B, H, T, S]. In place of -inf,
`dropped_score` is added, so that no score is infinite; a query without any key reads zeros, as in PyTorch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from posexport.nn.attention import dropped_score


@dataclass(frozen=True)
class Added:
    """A mask to add.

    Attributes:
        mask: [B, 1, 1, S] or [B or 1, H or 1, T, S].
        sees_any: bool [B or 1, H or 1, T or 1].
    """

    mask: Tensor
    sees_any: Tensor


def added(masks: Sequence[Tensor], q_BHTD: Tensor, keys: int) -> Added | None:
    """The sum of all ``masks``; None where there are none."""
    if not masks:
        return None
    shaped = [_of_four_axes(mask, keys) for mask in masks]
    seen = reduce(torch.logical_and, [_seen(mask) for mask in shaped])
    mask = reduce(torch.add, [_term(mask, q_BHTD) for mask in shaped])
    batch, heads, queries, _ = mask.shape
    if queries == 1 and heads == 1:
        if batch == 1:
            mask = mask.expand(q_BHTD.shape[0], 1, 1, keys)
    elif queries == 1:
        mask = mask.expand(batch, heads, q_BHTD.shape[2], keys)
    return Added(mask, seen.any(-1))


def _of_four_axes(mask: Tensor, keys: int) -> Tensor:
    """[B or 1, H or 1, T or 1, S]: an axis that the module expanded is reduced to size 1."""
    mask = mask[(None,) * (4 - mask.ndim)]
    for axis, stride in enumerate(mask.stride()):
        if stride == 0:
            mask = mask.narrow(axis, 0, 1)
    return mask.expand(*mask.shape[:3], keys)


def _seen(mask: Tensor) -> Tensor:
    return mask if mask.dtype == torch.bool else mask > -torch.inf


def _term(mask: Tensor, like: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(like.dtype).clamp(min=dropped_score(like.dtype))
    return torch.where(mask, torch.zeros((), dtype=like.dtype, device=like.device), dropped_score(like.dtype))
