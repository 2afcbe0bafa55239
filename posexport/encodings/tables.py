"""Bases of encodings with learned tables, by position, by distance or by offset, and their interpolation."""

from abc import ABC, abstractmethod
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posexport.base.options.check import Size
from posexport.base.spec import Beyond
from posexport.encodings.encoding import Encoding, Term, Value
from posexport.encodings.positions import Positions
from posexport.encodings.resize import image_positions
from posexport.errors import PosexportError
from posexport.graph.ops.grid_scores import GRID_SCORES

Joined = Literal["sum", "concat"]


class PositionVectors(Encoding):
    """A vector of width ``hidden`` for every position, added to the token's (``sum``) or concatenated (``concat``)."""

    shift_invariant = False

    def __init__(self, *, hidden: Size, joined: Joined, **settings: Value) -> None:
        """``others``: further arguments of the subclass."""
        super().__init__(hidden=hidden, joined=joined, **settings)
        self.hidden = hidden
        self.joined = joined

    @abstractmethod
    def vectors(self, ids_BT: Tensor, dtype: torch.dtype) -> Tensor:
        """The vectors of int64 positions, [B or 1, T, hidden], in ``dtype`` or wider."""

    def embed(self, x_BTC: Tensor, positions: Positions) -> Tensor:
        """``x_BTC`` with each position's vector; a sum is computed in the wider of the two types and rounded once."""
        vectors_BTC = self.vectors(positions.ids_BT, x_BTC.dtype)
        if self.joined == "sum":
            return (x_BTC + vectors_BTC).to(x_BTC.dtype)
        return torch.cat([x_BTC, vectors_BTC.to(x_BTC.dtype).expand(x_BTC.shape[0], -1, -1)], -1)

    @property
    def added_width(self) -> int:
        """The vector's width, where it is not added."""
        return self.hidden if self.joined == "concat" else 0


class StretchableTable(Encoding):
    """An encoding with a table of ``max_positions`` rows, ``trained`` of them before it was stretched."""

    max_positions: int
    trained: int

    @property
    def trained_length(self) -> int:
        """Number of positions that the table was trained for."""
        return self.trained

    @property
    def limit(self) -> int:
        return self.max_positions

    @property
    def beyond(self) -> Beyond:
        """``interpolate`` where the table has been stretched."""
        return "interpolate" if self.max_positions > self.trained else "error"

    def _check_longer(self, length: int, overhead: int) -> None:
        """PosexportError unless ``length`` is more than the table holds without its ``overhead`` rows."""
        held = self.max_positions - overhead
        if length <= held:
            raise PosexportError(
                f"--beyond interpolate needs --max-length above the {held} positions that the table of {self.name} "
                f"holds, got {length}"
            )


def stretch(table: nn.Parameter, rows: int, *, kept: int) -> nn.Parameter:
    """``table`` [M, C] stretched linearly to ``kept + rows`` rows; the first ``kept`` stay as they are.

    The first and last of the others are kept as well. Computed in float64, rounded once.
    """
    old = table.detach()
    old_1CM = old[kept:].double().mT[None]
    new_MC = F.interpolate(old_1CM, size=rows, mode="linear", align_corners=True)[0].mT
    longer = nn.Parameter(old.new_empty(kept + rows, old.shape[1]), requires_grad=table.requires_grad)
    longer.data[:kept] = old[:kept]
    longer.data[kept:] = new_MC
    return longer


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


OnOverflow = Literal["error", "clip"]


class Clippable(Encoding):
    """A ``table`` of distances a layer, for inputs of up to ``max_positions``.

    ``beyond``: what distances outside the table are: an ``error`` (the length is limited), or clipped to the
    table's last (``clip``).
    """

    per_layer = True
    table: nn.Parameter

    def __init__(self, *, max_positions: Size, beyond: OnOverflow, **settings: Value) -> None:
        """``others``: further arguments of the subclass."""
        super().__init__(max_positions=max_positions, beyond=beyond, **settings)
        self.max_positions = max_positions
        self._beyond: Beyond = beyond

    @property
    def trained_length(self) -> int:
        """The longest input with all distances in the table."""
        return self.max_positions

    @property
    def limit(self) -> int | None:
        """None where distances are clipped."""
        return None if self._beyond == "clip" else self.max_positions

    @property
    def beyond(self) -> Beyond:
        return self._beyond

    def clipped(self) -> Encoding:
        """The same table without a limit: distances outside it are clipped to its last."""
        return self._copy_with({"table": self.table}, beyond="clip")


class RelativeTable(Clippable):
    """A table [2 max_positions - 1, head_size] a layer, for distances (query - key) from ``1 - max_positions`` up."""

    def __init__(self, *, max_positions: int = 512, head_size: Size, beyond: OnOverflow = "error") -> None:
        super().__init__(max_positions=max_positions, beyond=beyond, head_size=head_size)
        self.table = self._drawn(2 * max_positions - 1, head_size)


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
