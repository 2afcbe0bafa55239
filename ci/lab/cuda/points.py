"""At which lengths and paddings a case is proven on CUDA: few points each, all boundaries of kernels over all cases.

Kernels change with the length modulo 4, 8 and 16 (vector loads, biases), at blocks of 64 and 128, at 256 or 512 (which
attention), and where positions no longer fit into half precision.
"""

from collections.abc import Callable

from posexport.base.sizes import multiple, samples
from posexport.base.spec import SEQUENCE, Limits
from posexport.proof.grid.point import GridPoint

#: from each a case takes lengths in turn
BANDS = ((1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33), (63, 64, 65, 127, 128, 129), (512, 513, 2048, 4096))
#: in the rehearsal, the longest
LITTLE = 65

Some = Callable[[list[GridPoint]], list[GridPoint]]


def lengths_of(limits: Limits, index: int, count: int, longest: int) -> list[int]:
    """At most ``count`` lengths that the model takes, others for each ``index``."""
    fitting = [band for band in (_fitting(band, limits, longest) for band in BANDS) if band]
    fitting = fitting or [[max(limits.min_length, 1)]]
    turn, chosen = index // len(BANDS), []
    for number in range(count):
        band = fitting[(index + number) % len(fitting)]
        chosen.append(band[(turn + number // len(fitting)) % len(band)])
    return sorted(set(chosen))


def _fitting(band: tuple[int, ...], limits: Limits, longest: int) -> list[int]:
    step, least = limits.size_steps.get(SEQUENCE, 1), limits.min_length
    limit = limits.max_length if SEQUENCE in limits.limited_axes else None
    found = {multiple(samples(tokens, limits.convolutions), step) for tokens in band if tokens <= longest}
    return sorted(n for n in found if n >= least and (limit is None or n <= limit))


def some(index: int, count: int) -> Some:
    """Of a grid's points at most ``count``: of every length one, with other paddings and calls for each ``index``."""

    def chosen(points: list[GridPoint]) -> list[GridPoint]:
        accepted = [point for point in points if not point.must_be_rejected]
        by_length: dict[int, list[GridPoint]] = {}
        for point in accepted:
            by_length.setdefault(point.length, []).append(point)
        each = [of[(7 * index + 3 * turn) % len(of)] for turn, of in enumerate(by_length.values())]
        return each[:count]

    return chosen
