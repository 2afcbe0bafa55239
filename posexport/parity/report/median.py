"""Whether a bundle as a whole is as exact as PyTorch: the median error in units of PyTorch's. Imports no torch.

The tolerance of one point is wide, because at one point the order of summation decides. A systematic loss (a table in
half precision, an approximated function) raises the errors of most points, so it shows in their median.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from posexport.parity.report.points import Calls, MedianRatio, Point
from posexport.parity.report.record import CACHE

#: the largest median of error / PyTorch's baseline error
LIMIT = 2.0
#: fewer points than this have no median worth judging
LEAST_POINTS = 10
#: PyTorch's error counts as at least so many eps
LEAST_EPS = 2


def check(points: Sequence[Point], switches: Sequence[int], eps: float) -> list[MedianRatio]:
    """Medians per output over all points, and per branch of the graph, where there are `LEAST_POINTS` or more.

    A branch is an interval of lengths between two ``switches``, with sequences in one call apart from sequences in
    several calls (decode steps behind a cache are computed in another way). ``eps``: of the precision.
    """
    groups: dict[str, dict[tuple[int, bool] | None, list[tuple[Point, float]]]] = {}
    for point, output, ratio in _ratios(points, eps):
        branches = groups.setdefault(output, defaultdict(list))
        for branch in (None, (bisect_left(switches, point.length), bool(point.calls))):
            branches[branch].append((point, ratio))
    medians = []
    for output, branches in groups.items():
        cached = any(branch is not None and branch[1] for branch in branches)
        for branch, members in branches.items():
            # where there is but one branch, it is the whole
            if len(members) >= LEAST_POINTS and (branch is None or len(branches) > 2):
                calls: Calls = None if branch is None or not cached else "several" if branch[1] else "one"
                medians.append(_judged(output, members, calls))
    return medians


def _ratios(points: Sequence[Point], eps: float) -> list[tuple[Point, str, float]]:
    """Point, output and ratio; all cache tensors of a point are one output, whose error is their largest."""
    errors: dict[tuple[object, str], list[Point]] = defaultdict(list)
    for point in points:
        if point.tolerance is not None:
            errors[point.point, CACHE if point.output.startswith("present.") else point.output].append(point)
    ratios = []
    for (_, output), tensors in errors.items():
        error = max(np.inf if tensor.error is None else tensor.error for tensor in tensors)
        baseline = max(tensor.worst_baseline_error or 0.0 for tensor in tensors)
        ratios.append((tensors[0], output, float(error / max(baseline, LEAST_EPS * eps))))
    return ratios


def _judged(output: str, members: Sequence[tuple[Point, float]], calls: Calls) -> MedianRatio:
    lengths = [point.length for point, _ in members]
    ratio = float(np.median([ratio for _, ratio in members]))
    return MedianRatio(
        output=output,
        shortest=min(lengths),
        longest=max(lengths),
        calls=calls,
        points=len(members),
        # JSON has no infinity
        ratio=min(ratio, float(np.finfo(np.float32).max)),
        limit=LIMIT,
        verdict="pass" if ratio <= LIMIT else "fail",
    )
