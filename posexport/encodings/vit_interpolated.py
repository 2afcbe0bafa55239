"""A learned vector for every patch of the trained grid, resized bicubically to the grid of the image at hand.

Dosovitskiy et al., "An Image is Worth 16x16 Words" (arXiv:2010.11929), sections 3.1 and 3.2: 2-D interpolation of the
pre-trained embeddings. The kernel follows the released PyTorch models (transformers' ``interpolate_pos_encoding``,
DINO): bicubic with a = -3/4, without antialiasing; at the trained size it is the table itself, exactly. Not done: the
scale factors with an offset of 0.1 of DINO and DINOv2.
"""

from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from posexport.base.options.check import Count, Size
from posexport.base.spec import Beyond
from posexport.encodings.encoding import Array, Encoding, register
from posexport.encodings.positions import Positions
from posexport.encodings.resize import cubic_weights, image_positions, resize


def oracle(
    x_BTC: Array,
    pos_BT: Array,
    *,
    params: Mapping[str, Array],
    hidden: int,
    rows: int = 14,
    columns: int = 14,
    prefix: int = 1,
) -> Array:
    """Patch by patch: the 4 x 4 neighbours of its place in the old grid, each by Keys's kernel of its distances."""
    table = params["table"]
    assert table.shape == (prefix + rows * columns, hidden)
    high, wide = pos_BT.reshape(-1, 2).max(0) + 1

    def kernel(x: float) -> float:
        x = abs(x)
        if x <= 1:
            return 1.25 * x**3 - 2.25 * x**2 + 1
        return -0.75 * (x**3 - 5 * x**2 + 8 * x - 4) if x < 2 else 0.0

    out = np.array(x_BTC)
    nowhere = 0
    for t, (r, c) in enumerate(pos_BT[0]):
        if r < 0:
            out[:, t] += table[nowhere]
            nowhere += 1
            continue
        y, x = (r + 0.5) * rows / high - 0.5, (c + 0.5) * columns / wide - 0.5
        for i in range(int(np.floor(y)) - 1, int(np.floor(y)) + 3):
            for j in range(int(np.floor(x)) - 1, int(np.floor(x)) + 3):
                index = prefix + columns * min(max(i, 0), rows - 1) + min(max(j, 0), columns - 1)
                out[:, t] += kernel(y - i) * kernel(x - j) * table[index]
    return out


@register(
    "vit-interpolated",
    cases=[
        {"hidden": 20, "rows": 4, "columns": 4},
        {"hidden": 7, "rows": 5, "columns": 3},
        {"hidden": 9, "rows": 1, "columns": 2, "prefix": 3},
        {"hidden": 6, "rows": 23, "columns": 19},
    ],
    source="Dosovitskiy et al. 2021, arXiv:2010.11929, sections 3.1 and 3.2",
    embed=oracle,
)
class VitInterpolated(Encoding):
    """Adds a learned vector per patch, resized bicubically from the trained grid; takes images of any size.

    ``table`` is [prefix + rows * columns, hidden]: a row for each of the ``prefix`` tokens without a patch (a class
    token), then the trained grid's patches, row by row. Weights and sums are float32 or wider, cast last.
    """

    axes = 2
    shift_invariant = False

    def __init__(self, *, hidden: Size, rows: Size = 14, columns: Size = 14, prefix: Count = 1) -> None:
        super().__init__(hidden=hidden, rows=rows, columns=columns, prefix=prefix)
        self.rows = rows
        self.columns = columns
        self.prefix = prefix
        self.table = self._drawn(prefix + rows * columns, hidden)

    def embed(self, x_BTC: Tensor, positions: Positions) -> Tensor:
        """The embeddings with each token's vector, of the table resized to the image's grid."""
        grid, row_BT, column_BT = image_positions(self.name, positions)
        wide = torch.promote_types(x_BTC.dtype, torch.float32)
        patches_RCD = self.table[self.prefix :].unflatten(0, (self.rows, self.columns))  # type: ignore[no-untyped-call]
        patches_PD = resize(
            patches_RCD,
            cubic_weights(grid.rows, self.rows, wide, x_BTC.device),
            cubic_weights(grid.columns, self.columns, wide, x_BTC.device),
        ).flatten(0, 1)
        vectors_ND = torch.cat([self.table[: self.prefix].to(wide), patches_PD])
        token_BT = torch.where(row_BT < 0, positions.ids_BT, self.prefix + row_BT * grid.columns + column_BT)
        return (x_BTC + F.embedding(token_BT, vectors_ND)).to(x_BTC.dtype)

    @property
    def limit(self) -> None:
        """Returns None: images of any size are supported."""
        return

    @property
    def trained_length(self) -> int:
        """The tokens of an image of the trained grid."""
        return self.prefix + self.rows * self.columns

    @property
    def beyond(self) -> Beyond:
        """``interpolate``, for smaller images too."""
        return "interpolate"
