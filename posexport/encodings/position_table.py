"""What encodings with one learned vector for every absolute position have in common."""

import torch.nn.functional as F
from torch import Tensor, nn

from posexport.encodings.base import Encoding
from posexport.encodings.positions import Positions
from posexport.errors import PosexportError
from posexport.spec import Beyond


class PositionTable(Encoding):
    """Adds ``table[offset + position]`` to the token embeddings.

    ``table`` is [max_positions + offset, hidden]; the first ``offset`` rows belong to no position. ``trained``: how
    many positions the table was trained for, where it has been stretched to ``max_positions`` since.
    """

    shift_invariant = False

    def __init__(self, *, max_positions: int, hidden: int, trained: int | None, **skipped: int) -> None:
        """``skipped``: ``offset``, from a subclass that takes it."""
        super().__init__(max_positions=max_positions, hidden=hidden, trained=trained, **skipped)
        offset = skipped.get("offset", 0)
        self._at_least(1, max_positions=max_positions, hidden=hidden)
        self._at_least(0, offset=offset)
        if trained is not None:
            self._at_least(1, trained=trained)
            if trained > max_positions:
                raise PosexportError(f"{self.name}: trained={trained} must be at most max_positions={max_positions}")
        self.max_positions = max_positions
        self.offset = offset
        self.trained = max_positions if trained is None else trained
        self.table = self._drawn(max_positions + offset, hidden)

    def embed(self, x_BTC: Tensor, positions: Positions) -> Tensor:
        """``x_BTC`` with the row of each token's position added."""
        return x_BTC + F.embedding(positions.ids_BT + self.offset, self.table)

    @property
    def trained_length(self) -> int:
        """How many positions the table was trained for."""
        return self.trained

    @property
    def limit(self) -> int:
        """How many positions the table holds."""
        return self.max_positions

    @property
    def beyond(self) -> Beyond:
        """``interpolate`` where the table has been stretched."""
        return "interpolate" if self.max_positions > self.trained else "error"

    def interpolated(self, length: int, *, overhead: int = 0) -> Encoding:
        """The table stretched linearly to ``length`` positions, its first and last row kept; computed in float64.

        ``overhead`` rows at the start (beside ``offset``) stay as they are and do not count in ``length``.
        PosexportError unless ``length`` is more than the table holds.
        """
        if length <= self.max_positions - overhead:
            raise PosexportError(
                f"--beyond interpolate needs --max-length above the {self.max_positions - overhead} positions "
                f"that the table of {self.name} holds, got {length}"
            )
        kept = self.offset + overhead
        rows = self.table.detach()
        old_1CM = rows[kept:].double().mT[None]
        new_MC = F.interpolate(old_1CM, size=length, mode="linear", align_corners=True)[0].mT
        table = nn.Parameter(rows.new_empty(kept + length, rows.shape[1]), requires_grad=self.table.requires_grad)
        table.data[:kept] = rows[:kept]
        table.data[kept:] = new_MC
        return self._copy_with({"table": table}, max_positions=overhead + length, trained=self.trained)
