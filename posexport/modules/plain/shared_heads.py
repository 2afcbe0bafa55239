"""Heads of keys and values that a module repeats for groups of queries: the cache holds each once.

Shape letters: B batch, H heads, G KV heads, T tokens, D head size.
"""

import torch
from torch import Tensor

_SPLIT = 4


def of_heads(x: Tensor, rows: int) -> Tensor:
    """[B, H, T, D], also of [B * H, T, D]."""
    return x if x.ndim == _SPLIT else x.reshape(rows, -1, *x.shape[1:])


def kv_heads(k: Tensor, v: Tensor, rows: int) -> int:
    """The fewest heads that, each repeated as often in a row, are all of ``k``'s and ``v``'s."""
    if k.ndim < _SPLIT and k.shape[0] % rows:
        return 1
    k_BHTD, v_BHTD = (of_heads(x, rows) for x in (k, v))
    heads = k_BHTD.shape[1]
    if v_BHTD.shape[1] != heads:
        return heads
    fewer = (n for n in range(1, heads) if heads % n == 0)
    return next((n for n in fewer if _repeated(k_BHTD, heads // n) and _repeated(v_BHTD, heads // n)), heads)


def _repeated(x_BHTD: Tensor, times: int) -> bool:
    return torch.equal(x_BHTD, each_once(x_BHTD, times).repeat_interleave(times, 1))


def each_once(x_BHTD: Tensor, times: int) -> Tensor:
    """[B, G, T, D], of heads that are each repeated so many times in a row."""
    return x_BHTD if times == 1 else x_BHTD[:, ::times]
