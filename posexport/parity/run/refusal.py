"""Whether an input beyond the limit is refused as it must be. Imports no torch."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from posexport.bounds import Bound
from posexport.parity.criterion import Array
from posexport.parity.grid.inputs import Feeds
from posexport.parity.run.subject import RunError


class Answer(NamedTuple):
    """``good``: the guard refused, naming the limit. ``note`` says what happened. ``answered``: it did not refuse.

    Of another tool's graph an answer can be good too (`posexport.parity.foreign.runner`).
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
