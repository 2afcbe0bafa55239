"""Whether a point fits into this machine's memory. Imports no torch."""

from collections.abc import Sequence

from posexport.machine import available as available
from posexport.machine import readable as readable
from posexport.parity.grid.point import GridPoint
from posexport.spec import OutputSpec

#: the part of the free memory that a point may take
SHARE = 0.8
#: score-shaped float64 arrays alive at once: q k^T, the term, their sum, the probabilities
_SCORES = 4
#: each output lives in float64, in PyTorch's and in ONNX Runtime's float32, and once more while one is made
_OUTPUTS = 2.5


#: bytes that a point beyond the default lengths may need
_FURTHER = 4 << 30


def further(lengths: Sequence[int], outputs: Sequence[OutputSpec], heads: int, limit: int) -> list[int]:
    """Of ``lengths`` beyond the default ones 1024 and the longest, as far as they fit easily."""
    most = min(_FURTHER, limit)
    fit = [length for length in lengths if needed(GridPoint(batch=1, length=length), outputs, heads) <= most]
    return sorted({length for length in fit if length == 1024} | set(fit[-1:]))


def needed(point: GridPoint, outputs: Sequence[OutputSpec], heads: int) -> int:
    """A rough upper bound, in bytes, of what one point's activations take."""
    keys = max(point.tokens, point.memory or 0)
    scores = _SCORES * 8 * point.batch * heads * point.tokens * keys
    widths = [axis for spec in outputs for axis in spec.axes[-1:] if isinstance(axis, int)]
    return int(scores + _OUTPUTS * 8 * point.batch * point.tokens * sum(widths))
