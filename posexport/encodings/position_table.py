"""Base of encodings with one learned vector for every absolute position."""

import torch
import torch.nn.functional as F
from torch import Tensor

from posexport.encodings.encoding import Encoding
from posexport.encodings.position_vectors import Joined, PositionVectors
from posexport.encodings.stretchable_table import StretchableTable, stretch
from posexport.errors import PosexportError
from posexport.options.values import Size


class PositionTable(StretchableTable, PositionVectors):
    """Adds ``table[offset + position]`` to the token embeddings, or concatenates it with them (``joined=concat``).

    ``table`` is [max_positions + offset, hidden]; the first ``offset`` rows belong to no position. ``trained``: how
    many positions the table was trained for, where it has been stretched to ``max_positions`` since.
    """

    def __init__(
        self, *, max_positions: Size, hidden: int, trained: Size | None, joined: Joined, **skipped: int
    ) -> None:
        """``skipped``: ``offset``, from a subclass that has it."""
        super().__init__(max_positions=max_positions, hidden=hidden, trained=trained, joined=joined, **skipped)
        offset = skipped.get("offset", 0)
        if trained is not None and trained > max_positions:
            raise PosexportError(f"{self.name}: trained={trained} must be at most max_positions={max_positions}")
        self.max_positions = max_positions
        self.offset = offset
        self.trained = max_positions if trained is None else trained
        self.table = self._drawn(max_positions + offset, hidden)

    def vectors(self, ids_BT: Tensor, dtype: torch.dtype) -> Tensor:
        return F.embedding(ids_BT + self.offset, self.table)

    def interpolated(self, length: int, *, overhead: int = 0) -> Encoding:
        """The table stretched linearly to ``length`` positions, its first and last row kept; computed in float64.

        ``overhead`` rows at the start (after ``offset``) are kept and do not count in ``length``.
        PosexportError unless ``length`` is more than the table holds.
        """
        self._check_longer(length, overhead)
        table = stretch(self.table, length, kept=self.offset + overhead)
        return self._copy_with({"table": table}, max_positions=overhead + length, trained=self.trained)
