"""One claim, its figure and its verdict; where positions stand. Imports no torch until asked for positions.

Shape letters: B batch, H heads, T queries, S keys, D head size, C model size.
"""

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from posexport.encodings.positions import Positions

#: Of any figure here: all is computed in float64, in which positions up to some thousands are angles to 1e-12.
TOLERANCE = 1e-9


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One claim. ``figure`` is None where the encoding does not claim it, for the reason in ``detail``."""

    claim: str
    figure: float | None
    allowed: float = TOLERANCE
    detail: str

    @property
    def good(self) -> bool:
        """Not claimed, or found to hold (a figure that is no number is not)."""
        return self.figure is None or self.figure <= self.allowed


def positions_from(first: int, length: int) -> "Positions":
    """``first``, ``first + 1`` ... for every row."""
    import torch

    from posexport.encodings.positions import Positions

    slots_T = torch.arange(first, first + length)
    return Positions(ids_BT=slots_T[None, :], slots_T=slots_T)
