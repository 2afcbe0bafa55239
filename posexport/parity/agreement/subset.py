"""Where a quantized graph runs: at every length of the grid, in every way to call the model. Imports no torch."""

from collections import Counter, defaultdict
from collections.abc import Sequence

from posexport.parity.grid.point import GridPoint


def subset(points: Sequence[GridPoint], wanted: Sequence[GridPoint] = ()) -> list[GridPoint]:
    """Of each length a point in one call and one in several, their paddings and batches in turn; all refusals.

    ``wanted`` are in any case. Every padding, kind of batch and schedule of calls of ``points`` is among them.
    """
    accepted = [point for point in points if not point.refusal]
    groups: dict[object, list[GridPoint]] = defaultdict(list)
    for point in accepted:
        groups[point.length, point.image, bool(point.calls)].append(point)
    chosen = list(wanted)
    uses: Counter[object] = Counter(map(_kind, chosen))
    for group in groups.values():
        point = min(group, key=lambda p: uses[_kind(p)])
        uses[_kind(point)] += 1
        chosen += [point] * (point not in chosen)
    for point in sorted(accepted, key=lambda p: -p.length):
        if not uses[_kind(point)]:
            uses[_kind(point)] += 1
            chosen.append(point)
    return [*sorted(chosen, key=lambda p: p.length), *(point for point in points if point.refusal)]


def _kind(point: GridPoint) -> tuple[object, ...]:
    return point.padding, point.batch > 1, len(point.calls), point.numbered
