"""Explicit integer positions, so that padding, offsets, a KV cache and chunked prefill need nothing special."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Grid:
    """An image's patches, row by row, after ``prefix`` tokens without coordinates (a class token).

    ``rows`` and ``columns`` may be symbolic while a model is traced.
    """

    rows: int
    columns: int
    prefix: int = 0


@dataclass(frozen=True)
class Positions:
    """The positions of a call's tokens.

    Attributes:
        ids_BT: int64 ``[batch or 1, length]``, the position of every token, per row.
        slots_T: int64 ``[length]``, consecutive (each one more than the one before), chosen so that for every pair of
            tokens that is not masked the difference of slots is the difference of ids. Distances can then be computed
            once for the batch.
        axes_ABT: int64 ``[axes, batch or 1, length]``, the coordinates of every token where positions have more than
            one: row and column of a patch, -1 for a token without coordinates. None: text.
        grid: the size of the image, where there is one.
    """

    ids_BT: Tensor
    slots_T: Tensor
    axes_ABT: Tensor | None = None
    grid: Grid | None = None

    def part(self, tokens: slice) -> "Positions":
        """The positions of a slice of the tokens."""
        axes_ABT = None if self.axes_ABT is None else self.axes_ABT[..., tokens]
        return Positions(self.ids_BT[:, tokens], self.slots_T[tokens], axes_ABT)

    @staticmethod
    def counted(length: int, device: torch.device | None = None) -> "Positions":
        """Positions 0, 1, 2 ... in every row."""
        slots_T = torch.arange(length, dtype=torch.int64, device=device)
        return Positions(ids_BT=slots_T[None, :], slots_T=slots_T)

    @staticmethod
    def image(rows: int, columns: int, *, prefix: int = 0, device: torch.device | None = None) -> "Positions":
        """The patches of an image row by row, after ``prefix`` tokens without coordinates."""
        row_P = torch.arange(rows, dtype=torch.int64, device=device)[:, None].expand(rows, columns).reshape(-1)
        column_P = torch.arange(columns, dtype=torch.int64, device=device)[None, :].expand(rows, columns).reshape(-1)
        nowhere_2N = torch.full((2, prefix), -1, dtype=torch.int64, device=device)
        axes_2T = torch.cat([nowhere_2N, torch.stack([row_P, column_P])], 1)
        counted = Positions.counted(axes_2T.shape[1], device)
        return Positions(counted.ids_BT, counted.slots_T, axes_2T[:, None, :], Grid(rows, columns, prefix))


def distances(queries: Positions, keys: Positions) -> tuple[Tensor, Tensor]:
    """The lowest distance (query minus key), int64 [1], and all T + S - 1 of them from it up, int64 [W]."""
    # picked, not sliced: of a slice the tracer cannot tell that it has one element
    lowest_1 = (queries.slots_T[0] - keys.slots_T[-1]).reshape(1)
    count = queries.slots_T.shape[0] + keys.slots_T.shape[0] - 1
    return lowest_1, lowest_1 + torch.arange(count, device=lowest_1.device)
