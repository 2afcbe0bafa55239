"""Whether an input beyond the limit is refused as it must be. Imports no torch."""

import re
from collections.abc import Callable
from typing import NamedTuple

from posexport.parity.criterion import Array
from posexport.parity.draw import Feeds
from posexport.parity.ort import RunError


class Answer(NamedTuple):
    """``good``: the guard refused, naming the limit. ``note`` says what happened."""

    good: bool
    note: str


def refused(run: Callable[[Feeds], list[Array]], feeds: Feeds, limit: int | None) -> Answer:
    """Feed an input that is too long. Only the guard's failure counts: others may be missing elsewhere."""
    try:
        run(feeds)
    except RunError as failure:
        if re.search(rf"longer than {limit} positions", str(failure)):
            return Answer(True, f"refused: longer than {limit} positions")
        return Answer(False, f"it failed without the length guard's message, which names the limit {limit}: {failure}")
    return Answer(False, f"it was answered, though the model takes at most {limit} positions: no length guard")
