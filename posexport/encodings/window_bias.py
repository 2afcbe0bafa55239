"""Base of relative position biases by the two-dimensional offset inside a window."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from posexport.encodings.encoding import Encoding, Term, Value
from posexport.encodings.image_positions import image_positions
from posexport.encodings.positions import Positions
from posexport.errors import PosexportError
from posexport.ops.grid_scores import GRID_SCORES
from posexport.options.values import Size


class WindowBias(Encoding, ABC):
    """A bias for every head and offset (query minus key) of two places of a window of ``window`` by ``window``."""

    axes = 2
    windowed = True
    per_layer = True

    def __init__(self, *, window: Size, heads: Size, **settings: Value) -> None:
        """``others``: further arguments of the subclass."""
        super().__init__(window=window, heads=heads, **settings)
        self.window = window
        self.heads = heads

    @abstractmethod
    def by_offset(self) -> Tensor:
        """The biases, [(2 window - 1)^2, heads]: by rows first, each from the lowest offset up; float32 or wider."""

    def scores(self, q_BHTD: Tensor, k_BHSD: Tensor, queries: Positions, keys: Positions) -> Term:
        # rows of offsets are 2 window - 1 long, so that a difference of codes is the offset's row of the biases
        reach_1 = torch.tensor([2 * self.window * (self.window - 1)], device=q_BHTD.device)
        first_2 = torch.cat([queries.slots_T[:1], keys.slots_T[:1]])
        codes = (self._codes(queries), self._codes(keys))
        return Term(GRID_SCORES, (self.by_offset().mT.to(q_BHTD.dtype), -reach_1, *codes, first_2), queries, keys)

    def _codes(self, positions: Positions) -> Tensor:
        """``row (2 window - 1) + column`` of every token. Raises PosexportError for positions outside a window."""
        grid, row_BT, column_BT = image_positions(self.name, positions)
        if max(grid.rows, grid.columns) > self.window or grid.prefix:
            raise PosexportError(
                f"{self.name}: positions must be those of a window of {self.window} by {self.window} or less, got "
                f"{grid.rows} by {grid.columns} after {grid.prefix} tokens; a definition that cuts images into windows "
                "gives them (posexport.models.windowed)"
            )
        return row_BT[0] * (2 * self.window - 1) + column_BT[0]
