"""The arithmetic that all relative operators share.

Queries at consecutive positions ``q0 .. q0+T-1`` and keys at ``k0 .. k0+S-1`` have only T + S - 1 distances. Listed
from the greatest down, column ``c`` holds the distance (query minus key) ``top - c`` with ``top = q0 + T - 1 - k0``,
and the pair (i, j) is in column ``T - 1 - i + j``: every query's row is the previous query's, shifted by one. One
column more (T + S) makes the move a plain reshape at every length, 1 included.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

#: Queries per block of the eager operators: bounds their memory at about block x (block + S).
BLOCK = 256


def blocks(x: Tensor, dim: int = 0, size: int = BLOCK) -> Iterator[Tensor]:
    """Views of ``x``, each of at most ``size`` along ``dim``; ``x`` itself while PyTorch compiles, for any length.

    Autograd follows in-place writes to them. It would not for ``torch.split``, several views of one operator, nor for
    views that were made before their neighbour was written.
    """
    if torch.compiler.is_compiling():
        yield x
        return
    for start in range(0, x.shape[dim], size):
        yield x.narrow(dim, start, min(size, x.shape[dim] - start))


def columns(q_T: Tensor, k_S: Tensor) -> Tensor:
    """The distance (query minus key) of each of the T + S columns, greatest first; int64."""
    width = q_T.shape[0] + k_S.shape[0]
    return q_T[-1] - k_S[0] - torch.arange(width, device=q_T.device)


def skew(x: Tensor, keys: int) -> Tensor:
    """[..., T, T + S] by distance column -> [..., T, S] by key: out[i, j] = x[i, T - 1 - i + j]. A view, no copy."""
    T, width = x.shape[-2:]
    moved = x.flatten(-2)[..., T - 1 : T - 1 + T * (width - 1)]
    return moved.view(*x.shape[:-1], width - 1)[..., :keys]


def toeplitz(by_column: Tensor, queries: int, keys: int) -> Tensor:
    """[..., T + S] by distance column, the same for all queries -> [..., T, S] by key."""
    return skew(by_column[..., None, :].expand(*by_column.shape[:-1], queries, -1), keys)


def unskew(x: Tensor) -> Tensor:
    """[..., T, S] by key -> [..., T, T + S] by distance column; columns without a key are 0. Undoes `skew`."""
    T, S = x.shape[-2:]
    out = x.new_zeros(*x.shape[:-1], T + S)
    skew(out, S).copy_(x)
    return out
