"""Sequences in several calls, each with the KV cache of those before, and with positions that are given."""

from collections.abc import Sequence

import msgspec

from posexport.parity.grid.point import GridPoint

#: decode steps after a prefill: enough to pass a length at which the formula changes
_STEPS = 3
#: tokens above which lowerings compute a call in tiles: one such call has to come behind a cache too
_TILE = 128


def in_calls(points: Sequence[GridPoint]) -> list[GridPoint]:
    """The same sequences, split in every way."""
    return [msgspec.structs.replace(point, calls=calls) for point in points for calls in splits(point.length)]


def splits(length: int) -> list[tuple[int, ...]]:
    """Prefill and decode steps; chunked prefill in three calls; a long chunk behind a short one."""
    if length < 2:
        return []
    steps = min(_STEPS, length - 1)
    ways = [(length - steps, *[1] * steps)]
    chunk = -(-length // 3)
    if length > 3:
        ways.append((chunk, chunk, length - 2 * chunk))
    first = length // 8
    if chunk <= _TILE < length - first:
        ways.append((first, length - first))
    return [calls for calls in ways if min(calls) > 0]


def numbered(points: Sequence[GridPoint]) -> list[GridPoint]:
    """Unpadded batches whose positions are given, instead of counted by the mask."""
    whole = [point for point in points if point.batch > 1 and point.padding == "none"]
    return [msgspec.structs.replace(point, position_ids_given=True) for point in whole]


def beyond(point: GridPoint, limit: int) -> GridPoint:
    """A decode step behind a cache that is as long as the limit."""
    return msgspec.structs.replace(point, calls=(limit, 1))
