"""A sequence in several calls, each with the cache of the calls before: a prompt, parts of one, single tokens.

Imports no torch.
"""

from collections.abc import Callable, Sequence

import numpy as np

from posexport.parity.criterion import Array
from posexport.parity.draw import Feeds
from posexport.spec import SEQUENCE, TOTAL, InputSpec, OutputSpec

Run = Callable[[Feeds], list[Array]]


def in_calls(
    run: Run, feeds: Feeds, inputs: Sequence[InputSpec], outputs: Sequence[OutputSpec], calls: Sequence[int]
) -> list[Array]:
    """The outputs of a whole sequence (``feeds``, with an empty past), computed in calls of so many new tokens.

    What has a number a new token is put together; caches are those of the last call. No ``calls``: one call.
    """
    if not calls:
        return run(feeds)
    held = {spec.name: feeds[spec.name] for spec in inputs if spec.role == "cache"}
    parts: list[list[Array]] = []
    end = 0
    for new in calls:
        start, end = end, end + new
        given = {}
        for spec in inputs:
            array = feeds[spec.name]
            if SEQUENCE in spec.axes:
                array = np.take(array, range(start, end), axis=spec.axes.index(SEQUENCE))
            elif TOTAL in spec.axes:
                array = np.take(array, range(end), axis=spec.axes.index(TOTAL))
            given[spec.name] = held.get(spec.name, array)
        parts.append(run(given))
        presents = [y for y, spec in zip(parts[-1], outputs, strict=True) if TOTAL in spec.axes]
        held = dict(zip(held, presents, strict=True))
    columns = list(zip(*parts, strict=True))
    return [
        np.concatenate(column, spec.axes.index(SEQUENCE)) if SEQUENCE in spec.axes else column[-1]
        for column, spec in zip(columns, outputs, strict=True)
    ]
