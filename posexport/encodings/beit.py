"""A learned number for every head and offset of two patches, and three for class tokens, added to the scores.

Bao et al., "BEiT" (arXiv:2106.08254), released code; other image sizes as in MiDaS v3.1 (Birkl et al.,
arXiv:2307.14460) and transformers 4.57.6: the table of offsets is resized linearly to the offsets of the new grid, as
an image, and at the trained size is itself, exactly. For trained grids that are not square transformers reads the table
with rows and columns exchanged; here it is the released code's.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from posexport.base.options.check import Size
from posexport.encodings.encoding import Array, Encoding, Term, register
from posexport.encodings.positions import Positions
from posexport.encodings.resize import image_positions, linear_weights, resize
from posexport.graph.ops.grid_scores import GRID_SCORES


def oracle(
    q_BHTD: Array,
    k_BHSD: Array,
    qpos_BT: Array,
    kpos_BS: Array,
    *,
    params: Mapping[str, Array],
    heads: int,
    rows: int = 14,
    columns: int = 14,
    shared: bool = False,
) -> Array:
    """Pair by pair: the four offsets of the trained grid nearest to the pair's offset."""
    del shared
    table = params["table"]
    assert table.shape == ((2 * rows - 1) * (2 * columns - 1) + 3, heads)
    high, wide = kpos_BS.reshape(-1, 2).max(0) + 1
    out = np.zeros((1, heads, q_BHTD.shape[2], k_BHSD.shape[2]))

    def around(offset: int, size: int, trained: int) -> list[tuple[int, float]]:
        listed, old = 2 * size - 1, 2 * trained - 1
        at = min(max((offset + size - 0.5) * old / listed - 0.5, 0.0), old - 1.0)
        low = int(at)
        return [(low, 1 - (at - low)), (min(low + 1, old - 1), at - low)]

    for i, j in np.ndindex(out.shape[2:]):
        here, there = qpos_BT[0, i], kpos_BS[0, j]
        if here[0] < 0 or there[0] < 0:
            # class token to patch, patch to class token, class token to itself: the table's last three rows
            out[0, :, i, j] = table[-3 if there[0] >= 0 else -2 if here[0] >= 0 else -1]
            continue
        for down, a in around(here[0] - there[0], high, rows):
            for right, b in around(here[1] - there[1], wide, columns):
                out[0, :, i, j] += a * b * table[down * (2 * columns - 1) + right]
    return out


@register(
    "beit",
    cases=[
        {"heads": 5, "rows": 4, "columns": 4},
        {"heads": 3, "rows": 3, "columns": 5},
        {"heads": 2, "rows": 1, "columns": 1},
        {"heads": 5, "rows": 7, "columns": 9, "shared": True},
    ],
    source="Bao et al. 2022, arXiv:2106.08254, released code",
    scores=oracle,
)
class Beit(Encoding):
    """Adds ``table[offset of the patches, head]`` to the scores, not scaled; resized linearly to any image's grid.

    ``table`` is [(2 rows - 1)(2 columns - 1) + 3, heads]: offsets (query minus key) of the trained grid by rows first,
    from the lowest up, then the rows for a class token's query, a class token's key, and both. ``shared``: one table
    for all layers, otherwise one per layer. Resized in float32 or wider, once a call, cast last.
    """

    axes = 2
    per_layer = True

    def __init__(self, *, heads: Size, rows: Size = 14, columns: Size = 14, shared: bool = False) -> None:
        super().__init__(heads=heads, rows=rows, columns=columns, shared=shared)
        self.rows = rows
        self.columns = columns
        self.shared = shared
        self.table = self._drawn((2 * rows - 1) * (2 * columns - 1) + 3, heads)

    def in_layer(self, index: int) -> Encoding:
        """Itself where one table is shared; otherwise a fresh one."""
        return self if self.shared else super().in_layer(index)

    def scores(self, q_BHTD: Tensor, k_BHSD: Tensor, queries: Positions, keys: Positions) -> Term:
        """The bias of every offset of the image's grid, and the codes of its patches."""
        grid, _, _ = image_positions(self.name, keys)
        device, wide = q_BHTD.device, torch.promote_types(q_BHTD.dtype, torch.float32)
        down, right = 2 * self.rows - 1, 2 * self.columns - 1
        offsets_RCH = self.table[:-3].unflatten(0, (down, right))  # type: ignore[no-untyped-call]
        offsets_WH = resize(
            offsets_RCH,
            linear_weights(2 * grid.rows - 1, down, wide, device),
            linear_weights(2 * grid.columns - 1, right, wide, device),
        ).flatten(0, 1)
        of_query_1H, of_key_1H, of_both_1H = self.table[-3:].to(wide)[:, None].unbind()
        by_distance_HW = torch.cat([of_key_1H, offsets_WH, of_both_1H, of_query_1H]).mT
        # differences of codes: up to -farthest - 1 with a class token's key, -farthest to farthest between patches,
        # farthest + 1 between class tokens, and more with a class token's query
        last_row_1, last_column_1 = (torch.arange(n, device=device)[-1:] for n in (grid.rows, grid.columns))
        farthest_1 = last_row_1 * (2 * grid.columns - 1) + last_column_1
        query_code_T = self._codes(queries, grid.columns, 3 * farthest_1 + 2)
        key_code_S = self._codes(keys, grid.columns, 2 * farthest_1 + 1)
        first_2 = torch.cat([queries.slots_T[:1], keys.slots_T[:1]])
        tensors = (by_distance_HW.to(q_BHTD.dtype), -farthest_1 - 1, query_code_T, key_code_S, first_2)
        return Term(GRID_SCORES, tensors, queries, keys)

    def _codes(self, positions: Positions, columns: int, nowhere_1: Tensor) -> Tensor:
        """Of every token; the same in all rows of the batch, as images of a batch have one size."""
        _, row_BT, column_BT = image_positions(self.name, positions)
        return torch.where(row_BT[0] < 0, nowhere_1, row_BT[0] * (2 * columns - 1) + column_BT[0])
