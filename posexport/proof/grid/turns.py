"""Points at sizes at which a line of a user's module takes another branch than in its trace. Imports no torch.

``if x.shape[1] == 100`` has one side in the graph, and no usual size shows that it has two.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from posexport.base.spec import BATCH, ENCODER_SEQUENCE, SEQUENCE, Limits
from posexport.proof.grid.point import GridPoint
from posexport.proof.grid.sizes import point_of, with_sizes

#: tokens of the point that is changed, where the grid has one of as many
_TOKENS = 2


def points_of_turns(
    limits: Limits, turns: Sequence[Mapping[str, int]], points: Sequence[GridPoint]
) -> Iterator[GridPoint]:
    """Yields the smallest of ``points`` without padding at each of ``turns``, sizes by axis, that the model accepts."""
    unpadded = [p for p in points if p.padding == "none" and not (p.must_be_rejected or p.calls or p.cached or p.image)]
    smallest = min(unpadded, key=lambda point: (point.batch, point.length < _TOKENS, point.length), default=None)
    for sizes in turns:
        point = smallest
        for axis, size in sizes.items():
            point = None if point is None or not _is_accepted(limits, axis, size) else _at(limits, point, axis, size)
        if point is not None:
            yield point


def _at(limits: Limits, point: GridPoint, axis: str, size: int) -> GridPoint | None:
    """``point`` with a size of an axis; None where it lacks the axis."""
    sizes = dict(point.sizes)
    if axis == BATCH:
        return msgspec.structs.replace(point, batch=size)
    if axis in sizes:
        sizes[axis] = size
        return point_of(limits, point.batch, sizes) if point.length_estimated else with_sizes(limits, point, sizes)
    if axis == SEQUENCE and not point.length_estimated:
        return msgspec.structs.replace(point, length=size)
    if axis == ENCODER_SEQUENCE and point.encoder_length is not None:
        return msgspec.structs.replace(point, encoder_length=size)
    return None


def _is_accepted(limits: Limits, axis: str, size: int) -> bool:
    least = limits.min_length if axis == SEQUENCE else limits.min_sizes.get(axis, 1)
    most = limits.max_length if axis in limits.limited_axes else limits.max_sizes.get(axis)
    return least <= size <= (most or size) and size % limits.size_steps.get(axis, 1) == 0
