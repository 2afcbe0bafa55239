"""The arithmetic that all relative operators share.

Queries at consecutive positions ``q0 .. q0+T-1`` and keys at ``k0 .. k0+S-1`` have only T + S - 1 distances. Listed
from the greatest down, column ``c`` holds the distance (query minus key) ``top - c`` with ``top = q0 + T - 1 - k0``,
and the pair (i, j) stands in column ``T - 1 - i + j``: every query's row is the one before it moved by one. One
column more (T + S) makes the move a plain reshape at every length, 1 included.
"""

import torch
from torch import Tensor

#: Queries per block of the eager operators: bounds their memory at about block x (block + S).
BLOCK = 256


def blocks(x: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """``x`` in blocks of at most `BLOCK` along ``dim``; views."""
    return torch.split(x, BLOCK, dim)


def columns(q_T: Tensor, k_S: Tensor) -> Tensor:
    """The distance (query minus key) of each of the T + S columns, greatest first; int64."""
    width = q_T.shape[0] + k_S.shape[0]
    return q_T[-1] - k_S[0] - torch.arange(width, device=q_T.device)


def skew(x: Tensor, keys: int) -> Tensor:
    """[..., T, T + S] by distance column -> [..., T, S] by key: out[i, j] = x[i, T - 1 - i + j]. A view, no copy."""
    x = x.contiguous()
    T, width = x.shape[-2:]
    return x.as_strided((*x.shape[:-1], keys), (*x.stride()[:-2], width - 1, 1), x.storage_offset() + T - 1)


def unskew(x: Tensor) -> Tensor:
    """[..., T, S] by key -> [..., T, T + S] by distance column; columns without a key are 0. Undoes `skew`."""
    T, S = x.shape[-2:]
    out = x.new_zeros(*x.shape[:-1], T + S)
    skew(out, S).copy_(x)
    return out
