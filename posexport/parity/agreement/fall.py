"""Whether agreement falls with length, as it does where positions lose precision. Imports no torch."""

from collections.abc import Iterator, Sequence

import numpy as np

from posexport.parity.agreement.limits import FALL, LEAST_FALL
from posexport.parity.report.points import Invariant, Point

NAME = "agreement does not fall with length"
#: fewer tokens say little, and where lengths are less than so many times apart there is nothing to compare
_FROM, _APART = 8, 4


def fall(points: Sequence[Point]) -> Iterator[Invariant]:
    """1 - cosine of each output at its longest length, against the mean over those of a quarter of it and less."""
    for output in dict.fromkeys(point.output for point in points):
        losses: dict[int, list[float]] = {}
        for point in points:
            if point.output == output and point.cosine is not None and point.length >= _FROM:
                losses.setdefault(point.length, []).append(1 - point.cosine)
        if not losses:
            continue
        longest = max(losses)
        short = [loss for length, each in losses.items() if length * _APART <= longest for loss in each]
        if not short:
            continue
        loss, before = float(np.mean(losses[longest])), float(np.mean(short))
        limit = max(FALL * before, LEAST_FALL)
        good = loss <= limit
        note = f"1 - cosine is {loss:.1e}, {before:.1e} at a quarter of the length and less"
        yield Invariant(
            name=NAME,
            length=longest,
            output=output,
            error=loss,
            tolerance=limit,
            verdict="pass" if good else "fail",
            note="" if good else note,
        )
