"""Explicit integer positions, so that padding, offsets, a cache and chunked prompts need nothing special."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Positions:
    """The positions of a call's tokens.

    Attributes:
        ids_BT: int64 ``[batch or 1, length]``, the position of every token, per row. slots_T: int64 ``[length]``,
        consecutive (each one more than the one before), chosen so that for every pair of tokens
            that is not masked the difference of slots is the difference of ids. Distances can then be computed once for
            the batch.
    """

    ids_BT: Tensor
    slots_T: Tensor

    @staticmethod
    def counted(length: int, device: torch.device | None = None) -> "Positions":
        """0, 1, 2 ... for every row."""
        slots_T = torch.arange(length, dtype=torch.int64, device=device)
        return Positions(ids_BT=slots_T[None, :], slots_T=slots_T)
