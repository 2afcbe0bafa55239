"""Three rules for values: the criterion, a tolerance of the user's, those stored with a sample. Imports no torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from posexport.parity import criterion
from posexport.parity.report import median
from posexport.parity.report.points import MedianRatio, Point
from posexport.targets.precisions import PrecisionName


@dataclass(frozen=True)
class Criterion:
    """`posexport.parity.criterion` at every point, and `posexport.parity.report.median` over all.

    ``switches``: lengths at which the graph computes in another way (`posexport.parity.grid.grid.switches`).
    """

    precision: PrecisionName
    switches: Sequence[int] = ()

    def tolerance(self, length: int, output: str, baseline: float) -> float:
        """The larger of 8 times PyTorch's error and the floor."""
        del length
        return criterion.tolerance(self.precision, output, baseline)

    def medians(self, points: Sequence[Point]) -> list[MedianRatio]:
        """Per output, and per side of each switch."""
        return median.check(points, self.switches, criterion.EPS[self.precision])


@dataclass(frozen=True)
class UserTolerance:
    """One error that passes everywhere; medians are not judged."""

    precision: PrecisionName
    error: float

    def tolerance(self, length: int, output: str, baseline: float) -> float:
        """The user's."""
        del length, output, baseline
        return self.error

    def medians(self, points: Sequence[Point]) -> list[MedianRatio]:
        """None."""
        del points
        return []


@dataclass(frozen=True)
class StoredTolerances:
    """Those of the proof that a sample was taken from; where PyTorch overflowed there, the criterion's floor."""

    precision: PrecisionName
    stored: Mapping[tuple[int, str], float]

    def tolerance(self, length: int, output: str, baseline: float) -> float:
        """By length and output."""
        del baseline
        return self.stored.get((length, output), criterion.floor(self.precision, output))

    def medians(self, points: Sequence[Point]) -> list[MedianRatio]:
        """None: a sample has too few points."""
        del points
        return []
