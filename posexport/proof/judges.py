"""When a value is right, and whether a point beyond the limits was rejected as it must be. Imports no torch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from posexport.base.bounds import Bound
from posexport.base.spec import Interface
from posexport.base.targets.precisions import PrecisionName
from posexport.proof import criterion
from posexport.proof.criterion import Array
from posexport.proof.grid.inputs import Feeds, draw, size_of
from posexport.proof.grid.point import GridPoint
from posexport.proof.report.points import MedianRatio, Point
from posexport.proof.report.record import check_medians
from posexport.proof.subjects.runner import RunError, in_calls


@dataclass(frozen=True)
class Guarded:
    """A graph with a length guard: it must reject with the messages of the model's ``bounds``."""

    model: Interface
    bounds: Sequence[Bound]

    def judge(self, subject: Callable[[Feeds], list[Array]], point: GridPoint) -> "Answer":
        """Only the message of a bound that the point breaks counts as its rejection."""
        run = partial(in_calls, subject, model=self.model, calls=point.calls)
        return refused(run, draw(point, self.model.inputs), broken(self.bounds, self.model, point))


class Answer(NamedTuple):
    """``good``: the guard refused, naming the limit. ``note`` says what happened. ``answered``: it did not refuse.

    Of another tool's graph an answer can be good too (`posexport.proof.foreign.runner`).
    """

    good: bool
    note: str
    answered: bool = False


def refused(run: Callable[[Feeds], list[Array]], feeds: Feeds, bounds: Sequence[Bound]) -> Answer:
    """Feed an input outside one of ``bounds``. Only the guard's failure counts: others may be missing elsewhere."""
    messages = [bound.message for bound in bounds]
    named = " or ".join(messages)
    try:
        run(feeds)
    except RunError as failure:
        said = next((message for message in messages if message in str(failure)), None)
        if said:
            return Answer(True, f"rejected: {said}")
        return Answer(False, f"it failed without the length guard's message ({named}): {failure}")
    return Answer(False, f"it was answered, though it must be rejected ({named}): no length guard")


def broken(bounds: Sequence[Bound], model: Interface, point: GridPoint) -> list[Bound]:
    """The ``bounds`` that ``point`` exceeds, on axes that ``model`` has."""
    axes = {axis for spec in model.inputs for axis in spec.axes}
    return [bound for bound in bounds if bound.axis in axes and bound.broken(size_of(bound.axis, point))]


@dataclass(frozen=True)
class Criterion:
    """`posexport.proof.criterion` at every point, and `posexport.proof.report.record` over all.

    ``switches``: lengths at which the graph computes in another way (`posexport.proof.grid.grid.switches`).
    """

    precision: PrecisionName
    switches: Sequence[int] = ()

    def tolerance(self, length: int, output: str, baseline: float) -> float:
        """The larger of 8 times PyTorch's error and the floor."""
        del length
        return criterion.tolerance(self.precision, output, baseline)

    def medians(self, points: Sequence[Point]) -> list[MedianRatio]:
        """Per output, and per side of each switch."""
        return check_medians(points, self.switches, criterion.EPS[self.precision])


@dataclass(frozen=True)
class UserTolerance:
    """One error that passes everywhere; medians are not judged."""

    precision: PrecisionName
    error: float

    def tolerance(self, length: int, output: str, baseline: float) -> float:
        """Returns the user's tolerance."""
        del length, output, baseline
        return self.error

    def medians(self, points: Sequence[Point]) -> list[MedianRatio]:
        """Returns an empty list: no medians."""
        del points
        return []


@dataclass(frozen=True)
class StoredTolerances:
    """The tolerances stored with a sample; where PyTorch overflowed, the criterion's floor."""

    precision: PrecisionName
    stored: Mapping[tuple[int, str], float]

    def tolerance(self, length: int, output: str, baseline: float) -> float:
        """Returns the tolerance by length and output."""
        del baseline
        return self.stored.get((length, output), criterion.floor(self.precision, output))

    def medians(self, points: Sequence[Point]) -> list[MedianRatio]:
        """None: a sample has too few points."""
        del points
        return []
