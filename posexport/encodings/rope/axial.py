"""Rotary position embedding of images: half of a head's pairs rotate by the patch's row, half by its column.

The convention follows Qwen2-VL's vision tower (Wang et al., arXiv:2409.12191, section 2.1, released code; the
two-dimensional form of Su et al., arXiv:2104.09864): rows in the first half of the pairs, columns in the second, the
same frequencies in both. EVA-02 (Fang et al., arXiv:2303.11331) stores pairs ``interleaved``. DINOv3 (Simeoni et al.,
arXiv:2508.10104) rotates by the place within the image: ``coordinates=normalised``, with base 100. Pixtral (Agrawal et
al., arXiv:2410.07073) deals the frequencies of one rotation out in turn: ``frequencies=alternating``. Not done:
EVA-02's scaling of coordinates to the trained grid; DINOv3's augmentations, which are for training.
"""

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from posexport.base.options.check import AboveOne, FromFour
from posexport.encodings.encoding import Array, Encoding, register
from posexport.encodings.positions import Positions
from posexport.encodings.resize import image_positions
from posexport.encodings.rope.rope import Role
from posexport.errors import PosexportError
from posexport.graph.ops.rotation import Layout, rotate

Coordinates = Literal["index", "normalised"]
Frequencies = Literal["same", "alternating"]


def oracle(
    x_BHTD: Array,
    pos_BT: Array,
    *,
    params: Mapping[str, Array],
    head_size: int,
    layout: str = "half",
    base: float = 10000.0,
    coordinates: str = "index",
    frequencies: str = "same",
) -> Array:
    """Token by token and pair by pair, in complex numbers; positions [B, T, 2] reach to the image's last patch."""
    assert not params
    pairs = head_size // 2
    out = np.array(x_BHTD)
    sizes = pos_BT.reshape(-1, 2).max(0) + 1
    for t, place in enumerate(pos_BT[0]):
        for i in range(pairs if place[0] >= 0 else 0):
            axis, within = divmod(i, pairs // 2)
            exponent = 2 * within / pairs if frequencies == "same" else (2 * within + axis) / pairs
            at = float(place[axis])
            if coordinates == "normalised":
                at = 2 * math.pi * ((2 * at + 1) / float(sizes[axis]) - 1)
            a, b = (i, i + pairs) if layout == "half" else (2 * i, 2 * i + 1)
            rotation = np.exp(1j * at * base**-exponent)
            rotated = (x_BHTD[:, :, t, a] + 1j * x_BHTD[:, :, t, b]) * rotation
            out[:, :, t, a], out[:, :, t, b] = rotated.real, rotated.imag
    return out


@register(
    "rope-axial",
    cases=[
        {"head_size": 20},
        {"head_size": 12, "layout": "interleaved", "base": 500.0},
        {"head_size": 16, "coordinates": "normalised", "base": 100.0},
        {"head_size": 8, "frequencies": "alternating"},
        {"head_size": 4},
    ],
    source="Wang et al. 2024, arXiv:2409.12191, section 2.1",
    rotate=oracle,
)
class RopeAxial(Encoding):
    """Turns half of the pairs of queries and keys by the patch's row, half by its column; takes images of any size.

    Pair i of each half rotates by ``coordinate base^(-4i / head_size)``. ``coordinates``: the patch's ``index`` or
    its centre's place in the image, from -2 pi to 2 pi (``normalised``). ``frequencies``: the ``same`` for rows and
    columns, or the frequencies of one rotation of the head in turn (``alternating``). Tokens without a patch (a class
    token) are not rotated. Angles, and vectors while they are rotated, are float32 or wider; the cast is last.
    """

    axes = 2

    def __init__(
        self,
        *,
        head_size: FromFour,
        layout: Layout = "half",
        base: AboveOne = 10000.0,
        coordinates: Coordinates = "index",
        frequencies: Frequencies = "same",
    ) -> None:
        super().__init__(
            head_size=head_size, layout=layout, base=base, coordinates=coordinates, frequencies=frequencies
        )
        if head_size % 4:
            raise PosexportError(
                f"{self.name}: head_size must be a multiple of 4, pairs for rows and as many for columns, "
                f"got {head_size}"
            )
        self.layout: Layout = layout
        self.normalised = coordinates == "normalised"
        later = 0 if frequencies == "same" else 2
        # Python floats: module.half() cannot round them
        self.frequencies = [
            [base ** (-(4 * i + shift) / head_size) for i in range(head_size // 4)] for shift in (0, later)
        ]

    def rotate(self, x_BHTD: Tensor, positions: Positions, role: Role) -> Tensor:
        """Pair by pair: ``(a + ib) exp(i coordinate frequency)``."""
        grid, row_BT, column_BT = image_positions(self.name, positions)
        wide = torch.promote_types(x_BHTD.dtype, torch.float32)
        angles = []
        for at_BT, size, frequencies in zip(
            (row_BT, column_BT), (grid.rows, grid.columns), self.frequencies, strict=True
        ):
            at = at_BT.to(wide)
            if self.normalised:
                at = ((2 * at_BT + 1).to(wide) / size - 1) * (2 * math.pi)
            angles.append(at[..., None] * torch.tensor(frequencies, dtype=wide, device=x_BHTD.device))
        angle_BTF = torch.cat(angles, -1)
        angle_BTF = torch.where((row_BT < 0)[..., None], torch.zeros_like(angle_BTF), angle_BTF)
        return rotate(x_BHTD, angle_BTF.cos()[:, None], angle_BTF.sin()[:, None], self.layout)
