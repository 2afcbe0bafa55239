"""Sequences cut into blocks of consecutive tokens, at any length.

Attention to near tokens needs only products of tokens in the same or in neighbouring blocks. The blocks are made by
gathering rows by indices computed from the length, so that no length is special and none is frozen in a trace;
slots beyond the end repeat the last token and are to be masked.

Shape letters: B batch, T tokens, N blocks, Q tokens of a block, C model size.
"""

import torch
from torch import Tensor


def smaller(length: int, size: int) -> int:
    """The smaller of the two, also where a trace does not know which."""
    least: int = torch.sym_min(length, size)  # type: ignore[no-untyped-call]
    return least


def starts(length: int, size: int, device: torch.device) -> Tensor:
    """The first slot of every block, int64 [N]; the last block reaches the end or beyond it."""
    return torch.arange((length + size - 1) // size, device=device) * size


def inside(slots: Tensor, length: int) -> Tensor:
    """The mask of slots that hold a token."""
    return (slots >= 0) & (slots < length)


def take(x_BTC: Tensor, slots_NQ: Tensor) -> Tensor:
    """[B, N, Q, C]: the rows at these slots, the nearest row for a slot that has none."""
    rows_NQ = slots_NQ.clamp(min=0).minimum(torch.full_like(slots_NQ[:1, :1], x_BTC.shape[1] - 1))
    rows: Tensor = x_BTC.index_select(1, rows_NQ.flatten()).unflatten(1, rows_NQ.shape)  # type: ignore[no-untyped-call]
    return rows


def join(x_BNQC: Tensor, length: int) -> Tensor:
    """[B, T, C]: the blocks one after the other, without what lies beyond the end."""
    return x_BNQC.flatten(1, 2).index_select(1, torch.arange(length, device=x_BNQC.device))
