"""One claim, its figure and its verdict; positions to check. Imports no torch until positions are made.

Shape letters: B batch, H heads, T queries, S keys, D head size, C model size.
"""

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from torch import Tensor

    from posexport.encodings.encoding import Encoding
    from posexport.encodings.positions import Positions

#: Of any figure here: all is computed in float64, in which positions up to some thousands are angles to 1e-12.
TOLERANCE = 1e-9
#: rows and columns of the patches that are looked at, and how many further to the lower right they are looked at again
BLOCK = (5, 6)
STEP = 9


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One claim. ``figure`` is None where the encoding does not claim it, for the reason in ``detail``."""

    claim: str
    figure: float | None
    allowed: float = TOLERANCE
    detail: str

    @property
    def applies(self) -> bool:
        return self.figure is not None

    @property
    def passed(self) -> bool | None:
        """It holds (a figure that is no number does not); None where it does not apply."""
        return None if self.figure is None else self.figure <= self.allowed


def positions_from(first: int, length: int, layer: "Encoding | None" = None) -> "Positions":
    """``first``, ``first + 1`` ... for every row; of an image its `block`, ``first`` patches to the lower right.

    ``layer``: the encoding, which may be of images; None: of a sequence.
    """
    import torch

    from posexport.encodings.positions import Grid, Positions

    if layer is None or layer.axes == 1:
        slots_T = torch.arange(first, first + length)
        return Positions(ids_BT=slots_T[None, :], slots_T=slots_T)
    (rows, columns), step = block(layer)
    at = Positions.image(rows, columns)
    assert at.axes_ABT is not None
    return Positions(at.ids_BT, at.slots_T, at.axes_ABT + first, Grid(rows + step, columns + step))


def block(layer: "Encoding") -> tuple[tuple[int, int], int]:
    """Rows and columns of the patches to look at, and how far they can be moved in the image, or in its window."""
    if not layer.windowed:
        return BLOCK, STEP
    side = (layer.window + 1) // 2
    return (side, side), layer.window - side


def steps(x_BHTS: "Tensor", layer: "Encoding") -> "list[Tensor]":
    """The change from each pair of tokens to the pair one position further; of images one down, and one to the right.

    Keys are the last axis.
    """
    if layer.axes == 1:
        return [x_BHTS[..., 1:, 1:] - x_BHTS[..., :-1, :-1]]
    (rows, columns), _ = block(layer)
    x_BHRCRC = x_BHTS.reshape(*x_BHTS.shape[:2], rows, columns, rows, columns)
    down = x_BHRCRC[:, :, 1:, :, 1:] - x_BHRCRC[:, :, :-1, :, :-1]
    right = x_BHRCRC[..., 1:, :, 1:] - x_BHRCRC[..., :-1, :, :-1]
    return [down.flatten(-2), right.flatten(-2)]
