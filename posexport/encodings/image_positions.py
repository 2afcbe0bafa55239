"""Grid and coordinates of an image's tokens, from the positions of a call."""

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
