"""Bilinear and bicubic resizing of a table with a row per patch, as products with matrices of weights.

The weights of `torch.nn.functional.interpolate` with ``align_corners=False``: row i of the new table is at
``(i + 1/2) old / new - 1/2`` of the old one. Keys (1981, "Cubic convolution interpolation for digital image
processing") with a = -3/4, as in PyTorch, or linear; indices beyond an end are clipped to it. Two small products
resize a table of two dimensions, at sizes that may be symbolic, with equal results on every runtime.
"""

import torch
from torch import Tensor

from posexport.encodings.positions import Grid, Positions
from posexport.errors import PosexportError


def image_positions(encoding: str, positions: Positions) -> tuple[Grid, Tensor, Tensor]:
    """The grid, and row and column of every token, int64 [B or 1, T] each, -1 for tokens without a patch.

    Raises PosexportError for positions of text.
    """
    if positions.grid is None or positions.axes_ABT is None or positions.axes_ABT.shape[0] != 2:
        raise PosexportError(
            f"{encoding} needs the rows and columns of an image, got positions of a sequence; use it in a vision model"
        )
    row_BT, column_BT = positions.axes_ABT.unbind()
    return positions.grid, row_BT, column_BT


#: Keys's parameter; PyTorch's choice
A = -0.75


def cubic_weights(new: int, old: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The matrix [new, old] of bicubic resizing along one dimension, in ``dtype`` (float32 or wider)."""
    first_N, t_N = _sources(new, old, dtype, device)
    near = [t_N, 1 - t_N]
    far = [t_N + 1, 2 - t_N]
    inner = [((A + 2) * x - (A + 3)) * x * x + 1 for x in near]
    outer = [((A * x - 5 * A) * x + 8 * A) * x - 4 * A for x in far]
    return _spread(first_N - 1, [outer[0], inner[0], inner[1], outer[1]], old)


def linear_weights(new: int, old: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The matrix [new, old] of bilinear resizing along one dimension, in ``dtype`` (float32 or wider)."""
    first_N, t_N = _sources(new, old, dtype, device)
    return _spread(first_N, [1 - t_N, t_N], old)


def resize(table_RCD: Tensor, rows_NR: Tensor, columns_MC: Tensor) -> Tensor:
    """[R, C, D] to [N, M, D], by the matrices of both dimensions, in their type."""
    wide_RCD = table_RCD.to(rows_NR.dtype)
    by_row_NCD = (rows_NR @ wide_RCD.flatten(1)).unflatten(1, wide_RCD.shape[1:])  # type: ignore[no-untyped-call]
    # as many matrices in both factors: on CUDA one call of the library (`posexport.graph.passes.device.equal_batches`)
    resized_MC: Tensor = columns_MC.expand(by_row_NCD.shape[0], -1, -1) @ by_row_NCD
    return resized_MC


def _sources(new: int, old: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """The old row at or before every new one, int64 [new], and the new one's distance from it, from 0 to 1."""
    # integer multiples of 1 / (2 new) of an old row, so that nothing is rounded before the last division
    part_N = (2 * torch.arange(new, dtype=torch.int64, device=device) + 1) * old - new
    first_N = part_N // (2 * new)  # torch.div's rounding modes become a division of float32 in ONNX
    return first_N, (part_N - first_N * (2 * new)).to(dtype) / (2 * new)


def _spread(first_N: Tensor, weights: list[Tensor], old: int) -> Tensor:
    """Weights of consecutive old rows from ``first_N`` on, as a matrix [new, old]."""
    index_1R = torch.arange(old, dtype=torch.int64, device=first_N.device)[None, :]
    out_NR = torch.zeros((), dtype=weights[0].dtype, device=first_N.device)
    for step, weight_N in enumerate(weights):
        index_N1 = (first_N + step).clamp(0, old - 1)[:, None]
        out_NR = out_NR + torch.where(index_N1 == index_1R, weight_N[:, None], torch.zeros_like(weight_N[:, None]))
    return out_NR
