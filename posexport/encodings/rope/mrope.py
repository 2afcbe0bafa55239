"""Rotary position embedding of several axes: sections of a head's pairs rotate by time, by row and by column.

Wang et al., "Qwen2-VL" (arXiv:2409.12191), section 2.1 (M-RoPE), released code: tokens of text have the same number on
all axes; the patches of an image that follows n of them have time n, row n + r and column n + c. Not done: the shorter
count of text after an image, which is the model's numbering; several images; Qwen3-VL's interleaved sections.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from posexport.encodings.encoding import Array, register
from posexport.encodings.positions import Positions
from posexport.encodings.rope.rope import Role, Rope
from posexport.errors import PosexportError
from posexport.graph.ops.rotation import Layout


def oracle(
    x_BHTD: Array,
    pos_BT: Array,
    *,
    params: Mapping[str, Array],
    head_size: int,
    layout: str = "half",
    base: float = 10000.0,
    sections: str | None = None,
) -> Array:
    """Pair by pair, each by the axis of its section; positions [B, T, 3] of time, row and column."""
    assert not params
    pairs = head_size // 2
    if sections is None:
        ends = [pairs // 4, pairs // 4 + (pairs - pairs // 4) // 2]
    else:
        ends = list(np.cumsum([int(size) for size in sections.split(",")])[:2])
    out = np.array(x_BHTD)
    for i in range(pairs):
        axis = sum(i >= end for end in ends)
        a, b = (i, i + pairs) if layout == "half" else (2 * i, 2 * i + 1)
        angle_BT = pos_BT[..., axis] * np.power(base, -i / pairs)
        rotated = (x_BHTD[..., a] + 1j * x_BHTD[..., b]) * np.exp(1j * angle_BT)[:, None]
        out[..., a], out[..., b] = rotated.real, rotated.imag
    return out


@register(
    "rope-mrope",
    cases=[
        {"head_size": 20},
        {"head_size": 16, "sections": "2,3,3", "base": 1e6},
        {"head_size": 14, "sections": "0,5,2", "layout": "interleaved"},
        {"head_size": 2},
    ],
    source="Wang et al. 2024, arXiv:2409.12191, section 2.1",
    rotate=oracle,
)
class RopeMrope(Rope):
    """Turns sections of the pairs of queries and keys by time, row and column; takes images and sequences of any size.

    ``sections``: how many pairs belong to time, row and column, as three numbers joined by commas; None: Qwen2-VL's
    shares, a quarter, and the rest in halves. Of an image, tokens before the patches are text: number t on all axes;
    patches start at their count. Positions that have three axes already are used as they are; a position of text is
    one number for all.
    """

    axes = 3

    def __init__(
        self, *, head_size: int, layout: Layout = "half", base: float = 10000.0, sections: str | None = None
    ) -> None:
        super().__init__(head_size=head_size, layout=layout, base=base, sections=sections)
        pairs = head_size // 2
        time = pairs // 4
        row = (pairs - time) // 2
        self.sections = [time, row, pairs - time - row] if sections is None else self._parse(sections, pairs)

    def _parse(self, text: str, pairs: int) -> list[int]:
        parts = [size.strip() for size in text.split(",")]
        if len(parts) != 3 or not all(size.isdecimal() for size in parts) or sum(map(int, parts)) != pairs:
            raise PosexportError(
                f"{self.name}: sections must be three whole numbers joined by commas, the pairs for time, row and "
                f"column, {pairs} together (half of head_size), got {text!r:.60}"
            )
        return [int(size) for size in parts]

    def waves(self, positions: Positions, dtype: torch.dtype, role: Role) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the angles, each pair's by its axis, [B or 1, 1, T, F]."""
        axis_F = [axis for axis, pairs in enumerate(self.sections) for _ in range(pairs)]
        chosen_F = torch.tensor(axis_F, dtype=torch.int64, device=positions.ids_BT.device)
        at_BTF = three_axes(positions).index_select(0, chosen_F).permute(1, 2, 0)
        frequency_BF = self.schedule.frequencies(positions.ids_BT, dtype)
        angle_B1TF = (at_BTF.to(dtype) * frequency_BF[:, None, :])[:, None]
        return angle_B1TF.cos(), angle_B1TF.sin()


def three_axes(positions: Positions) -> Tensor:
    """Time, row and column of every token as Qwen2-VL numbers them, int64 [3, B or 1, T]."""
    ids_1BT = positions.ids_BT[None]
    if positions.axes_ABT is None:
        return ids_1BT.expand(3, -1, -1)
    if positions.axes_ABT.shape[0] == 3:
        return positions.axes_ABT
    prefix = 0 if positions.grid is None else positions.grid.prefix
    time_1BT = torch.zeros_like(positions.axes_ABT[:1])
    axes_3BT = prefix + torch.cat([time_1BT, positions.axes_ABT])
    return torch.where(positions.axes_ABT[:1] < 0, ids_1BT, axes_3BT)
