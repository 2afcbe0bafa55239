"""A learned number for every head and two-dimensional offset inside a window, added to the scores.

Liu et al., "Swin Transformer: Hierarchical Vision Transformer using Shifted Windows" (arXiv:2103.14030), section 3.2,
equation 4. Not done: interpolating the table for another window size, which the paper leaves to fine-tuning.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from posexport.encodings.encoding import Array, register
from posexport.encodings.tables import WindowBias


def oracle(
    q_BHTD: Array,
    k_BHSD: Array,
    qpos_BTA: Array,
    kpos_BSA: Array,
    *,
    params: Mapping[str, Array],
    window: int = 4,
    heads: int,
) -> Array:
    """Equation 4's B, pair by pair: the entry of B^, [2 M - 1, 2 M - 1], at the offsets plus M - 1."""
    by_offset = params["table"].reshape(2 * window - 1, 2 * window - 1, heads)
    out = np.zeros((1, heads, q_BHTD.shape[2], k_BHSD.shape[2]))
    for i, (row, column) in enumerate(qpos_BTA[0]):
        for j, (key_row, key_column) in enumerate(kpos_BSA[0]):
            out[0, :, i, j] = by_offset[int(row - key_row) + window - 1, int(column - key_column) + window - 1]
    return out


@register(
    "swin",
    cases=[
        {"window": 17, "heads": 3},
        {"window": 7, "heads": 5},
        {"window": 3, "heads": 2},
        {"window": 1, "heads": 5},
    ],
    source="Liu et al. 2021, arXiv:2103.14030, equation 4",
    scores=oracle,
)
class Swin(WindowBias):
    """Adds ``table[(row, column of i) - (row, column of j), head]`` inside a window to the scores; one table a layer.

    ``table`` is [(2 window - 1)^2, heads], by rows first, from offset (query minus key) ``1 - window`` up. Not scaled.
    A definition cuts images of any size into these windows.
    """

    def __init__(self, *, window: int = 4, heads: int) -> None:
        super().__init__(window=window, heads=heads)
        self.table = self._drawn((2 * window - 1) ** 2, heads)

    def by_offset(self) -> Tensor:
        return self.table.to(torch.promote_types(self.table.dtype, torch.float32))
