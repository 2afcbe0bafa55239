"""Whether an input beyond the limit is rejected as it must be. Imports no torch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from posexport.bounds import Bound
from posexport.parity.calls import in_calls
from posexport.parity.criterion import Array
from posexport.parity.grid.inputs import Feeds, draw, size_of
from posexport.parity.grid.point import GridPoint
from posexport.parity.subjects.runner import RunError
from posexport.spec import Interface


@dataclass(frozen=True)
class Guarded:
    """A graph with a length guard: ``bounds`` of ``model``, whose messages the guard gives."""

    model: Interface
    bounds: Sequence[Bound]

    def judge(self, subject: Callable[[Feeds], list[Array]], point: GridPoint) -> "Answer":
        """Only the message of a bound that the point breaks counts as its rejection."""
        run = partial(in_calls, subject, model=self.model, calls=point.calls)
        return refused(run, draw(point, self.model.inputs), broken(self.bounds, self.model, point))


class Answer(NamedTuple):
    """``good``: the guard refused, naming the limit. ``note`` says what happened. ``answered``: it did not refuse.

    Of another tool's graph an answer can be good too (`posexport.parity.foreign.beyond`).
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
    """Those of ``bounds`` that ``point`` breaks, on axes that ``model`` has."""
    axes = {axis for spec in model.inputs for axis in spec.axes}
    return [bound for bound in bounds if bound.axis in axes and bound.broken(size_of(bound.axis, point))]
