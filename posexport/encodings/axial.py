"""Sines and cosines of the patch's row and column, each in one half of the channels, added to the embeddings.

He et al., "Masked Autoencoders Are Scalable Vision Learners" (arXiv:2111.06377), appendix A.1, released code: columns
in the first half (``first=column``), in each half all sines before all cosines. Carion et al., "End-to-End Object
Detection with Transformers" (arXiv:2005.12872), appendix, released code: rows first, sines and cosines interleaved, and
coordinates that run up to 2 pi (``first=row, layout=interleaved, normalise=true``). Not done: DETR's count of
coordinates over the pixels that are not padded.
"""

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from posexport.base.options.check import AboveOne, FromTwo
from posexport.encodings.encoding import Array, Encoding, register
from posexport.encodings.positions import Positions
from posexport.encodings.resize import image_positions
from posexport.encodings.waves import frequencies
from posexport.errors import PosexportError
from posexport.graph.ops.waves import Layout, waves

First = Literal["column", "row"]
#: DETR's, in the divisor of a coordinate
EPSILON = 1e-6


def oracle(
    x_BTC: Array,
    pos_BT: Array,
    *,
    params: Mapping[str, Array],
    hidden: int,
    first: str = "column",
    layout: str = "half",
    base: float = 10000.0,
    normalise: bool = False,
) -> Array:
    """Token by token and channel by channel; positions [B, T, 2] are all of an image's."""
    assert not params
    out = np.array(x_BTC)
    half = hidden // 2
    sines = (half + 1) // 2
    sizes = pos_BT.reshape(-1, 2).max(0) + 1
    order = (1, 0) if first == "column" else (0, 1)
    for t in range(pos_BT.shape[1]):
        if pos_BT[0, t, 0] < 0:
            continue
        for channel in range(hidden):
            axis, place = order[channel // half], channel % half
            pair, is_cosine = (place // 2, place % 2) if layout == "interleaved" else (place % sines, place // sines)
            p = float(pos_BT[0, t, axis])
            if normalise:
                p = 2 * math.pi * (p + 1) / (float(sizes[axis]) + 1e-6)
            angle = p / base ** (2 * pair / half)
            out[:, t, channel] += math.cos(angle) if is_cosine else math.sin(angle)
    return out


@register(
    "axial",
    cases=[
        {"hidden": 20},
        {"hidden": 14, "first": "row"},
        {"hidden": 24, "first": "row", "layout": "interleaved", "normalise": True},
        {"hidden": 10, "layout": "interleaved", "base": 500.0},
        {"hidden": 2},
    ],
    source="He et al. 2022, arXiv:2111.06377, appendix A.1",
    embed=oracle,
)
class Axial(Encoding):
    """Adds sinusoids of a patch's row and column, each in half of the channels; takes images of any size.

    ``first``: which coordinate has the first half of the channels. ``layout``: in each half sines and cosines by turns
    (``interleaved``) or all sines first (``half``). ``normalise``: coordinates count from 1 and the last one is 2 pi.
    Tokens without a patch (a class token) are left as they are.
    """

    axes = 2
    shift_invariant = False

    def __init__(
        self,
        *,
        hidden: FromTwo,
        first: First = "column",
        layout: Layout = "half",
        base: AboveOne = 10000.0,
        normalise: bool = False,
    ) -> None:
        super().__init__(hidden=hidden, first=first, layout=layout, base=base, normalise=normalise)
        if hidden % 2:
            raise PosexportError(f"{self.name}: hidden must be even, half of it for each coordinate, got {hidden}")
        self.each = hidden // 2
        self.first = first
        self.layout = layout
        self.normalise = normalise
        self.frequencies = frequencies(self.each, base)

    def embed(self, x_BTC: Tensor, positions: Positions) -> Tensor:
        """The embeddings with the waves of both coordinates; the sum is cast last."""
        grid, row_BT, column_BT = image_positions(self.name, positions)
        wide = torch.promote_types(x_BTC.dtype, torch.float32)
        blocks = []
        for at_BT, size in ((row_BT, grid.rows), (column_BT, grid.columns)):
            if self.normalise:
                at_BT = (at_BT + 1).to(wide) / (size + EPSILON) * (2 * math.pi)
            blocks.append(waves(at_BT, self.frequencies, self.each, self.layout, wide))
        vectors_BTC = torch.cat(blocks if self.first == "row" else blocks[::-1], -1)
        somewhere_BT1 = (row_BT >= 0)[..., None]
        added_BTC = torch.where(somewhere_BT1, vectors_BTC, torch.zeros_like(vectors_BTC))
        return (x_BTC + added_BTC).to(x_BTC.dtype)
