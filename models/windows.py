"""How a map of tokens is cut into windows, whatever its size: indices and masks computed from the size of the call.

Liu et al., "Swin Transformer" (arXiv:2103.14030), section 3.2 and its figure 4: windows of a map that was moved
cyclically, with a mask for what came together by that. A map that windows do not divide is padded at its lower and
right ends before it is moved, as in transformers.

Shape letters: T tokens of a map row by row, N windows in one direction or both, M the side of a window, P its places
(M M), Q the places of all windows, L rows or columns of the map.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Cut:
    """How a map is cut into windows, for one image.

    Attributes:
        tokens_Q: the token at every place, window by window; the one after the last where a place is padding.
        places_T: the place of every token.
        mask_N1PP: what to add to the scores; None: nothing.
    """

    tokens_Q: Tensor
    places_T: Tensor
    mask_N1PP: Tensor | None


def cut(rows: int, columns: int, window: int, shift: Tensor | None, like: Tensor, dropped: float) -> Cut:
    """Windows of a map that was moved up and left by ``shift``, what leaves it coming in at the other side.

    Pairs of places that were no neighbours before get ``dropped`` in the mask. ``rows``, ``columns`` may be symbolic.
    """
    down, across = _Side(rows, window, shift, like.device), _Side(columns, window, shift, like.device)
    row_N1M1, column_1N1M = down.line_NM[:, None, :, None], across.line_NM[None, :, None, :]
    inside_NNMM = (row_N1M1 < rows) & (column_1N1M < columns)
    tokens_NNMM = torch.where(inside_NNMM, row_N1M1 * columns + column_1N1M, rows * columns)
    row_places, column_places = down.places(across.count * window * window, window), across.places(window * window, 1)
    places_T = (row_places[:, None] + column_places[None, :]).flatten()
    mask_N1PP = None
    if shift is not None:
        region_NP = (3 * down.region_NM[:, None, :, None] + across.region_NM[None, :, None, :]).flatten(2).flatten(0, 1)
        zero = torch.zeros((), dtype=like.dtype, device=like.device)
        mask_N1PP = torch.where(region_NP[:, None, :, None] == region_NP[:, None, None, :], zero, dropped)
    return Cut(tokens_NNMM.flatten(), places_T, mask_N1PP)


class _Side:
    """One direction of `cut`: the contents of the M places of its ``count`` windows."""

    def __init__(self, length: int, window: int, shift: Tensor | None, device: torch.device) -> None:
        self.count = (length + window - 1) // window
        # a tensor: the exporter knows no arithmetic of tensors with sizes that the call decides
        whole = torch.full((), self.count * window, dtype=torch.int64, device=device)
        at_N = torch.arange(self.count, device=device)
        within_M = torch.arange(window, device=device)
        place_NM = at_N[:, None] * window + within_M
        self._at_N, self._within_M = at_N, within_M
        self._place_L = torch.arange(length, device=device)
        #: the map's row (or column) at a place; beyond its length at padding
        self.line_NM = place_NM
        #: equal for two places of a window that were neighbours before the shift
        self.region_NM = place_NM
        if shift is not None:
            self.line_NM = (place_NM + shift) % whole
            self._place_L = (self._place_L - shift) % whole
            self.region_NM = (place_NM >= whole - window).long() + (place_NM >= whole - shift).long()

    def places(self, next_window: int, next_line: int) -> Tensor:
        """Where each of the map's rows (or columns) begins among all places; windows and lines lie so far apart."""
        offset_NM = self._at_N[:, None] * next_window + self._within_M * next_line
        return offset_NM.flatten().index_select(0, self._place_L)
