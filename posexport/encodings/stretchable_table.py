"""``--beyond interpolate``: a table with one row per position, for more positions."""

import torch.nn.functional as F
from torch import nn

from posexport.encodings.encoding import Encoding
from posexport.errors import PosexportError
from posexport.spec import Beyond


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
