"""Whether a point fits into this machine's memory. Imports no torch."""

from collections.abc import Sequence
from dataclasses import dataclass

from posexport.parity.grid.point import GridPoint
from posexport.spec import OutputSpec
from posexport.system.machine import available as available
from posexport.system.machine import readable as readable

#: the part of the free memory that a point may take
SHARE = 0.8
#: score-shaped float64 arrays alive at once: q k^T, the term, their sum, the probabilities
_SCORES = 4
#: each output lives in float64, in PyTorch's and in ONNX Runtime's float32, and once more while one is made
_OUTPUTS = 2.5


#: bytes that a point beyond the default lengths may need
_FURTHER = 4 << 30


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What the points of a proof may take.

    Attributes:
        outputs: of the model.
        heads: of attention, the most of any layer.
        limit: bytes; None: most of what is free when it is asked.
    """

    outputs: Sequence[OutputSpec]
    heads: int = 16
    limit: int | None = None

    def room(self) -> int:
        """The bytes that a point may take."""
        return int(available() * SHARE) if self.limit is None else self.limit

    def fits(self, point: GridPoint) -> bool:
        """Whether there is memory for a point now."""
        return needed(point, self.outputs, self.heads) <= self.room()

    def further(self, lengths: Sequence[int]) -> list[int]:
        """Of ``lengths`` beyond the default ones 1024 and the longest, as far as they fit easily."""
        most = min(_FURTHER, self.room())
        points = (GridPoint(batch=1, length=length) for length in lengths)
        fit = [point.length for point in points if needed(point, self.outputs, self.heads) <= most]
        return sorted({length for length in fit if length == 1024} | set(fit[-1:]))

    def too_large(self, points: Sequence[GridPoint]) -> dict[GridPoint, str]:
        """The points for which there is no memory, with the reason."""
        room = self.room()
        needs = {point: needed(point, self.outputs, self.heads) for point in points}
        return {
            point: f"needs about {readable(need)} of memory, {readable(room)} may be taken"
            for point, need in needs.items()
            if need > room
        }


def needed(point: GridPoint, outputs: Sequence[OutputSpec], heads: int) -> int:
    """A rough upper bound, in bytes, of what one point's activations take."""
    keys = max(point.tokens, point.encoder_length or 0)
    scores = _SCORES * 8 * point.batch * heads * point.tokens * keys
    widths = [axis for spec in outputs for axis in spec.axes[-1:] if isinstance(axis, int)]
    return int(scores + _OUTPUTS * 8 * point.batch * point.tokens * sum(widths))
