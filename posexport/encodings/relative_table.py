"""Base of encodings with one learned vector for every distance."""

from typing import Literal

from torch import nn

from posexport.encodings.encoding import Encoding, Value
from posexport.options.values import Size
from posexport.spec import Beyond

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
