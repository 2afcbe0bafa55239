"""A sequence in several calls, each with the cache of the calls before: a prompt, parts of one, single tokens.

Imports no torch.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from posexport.parity.criterion import Array
from posexport.parity.grid.inputs import Feeds
from posexport.spec import CAPACITY, PRESENT, SEQUENCE, TOTAL, InputSpec, Interface, OutputSpec

Run = Callable[[Feeds], list[Array]]


def in_calls(run: Run, feeds: Feeds, model: Interface, calls: Sequence[int]) -> list[Array]:
    """The outputs of a whole sequence (``feeds``, with an empty past), computed in calls of so many new tokens.

    What has a number a new token is put together; caches are those of the last call, without unused slots. Before every
    call the unused slots of static KV caches hold what they hold in ``feeds``: programs may change them or not.
    No ``calls``: one call.
    """
    inputs, outputs = model.inputs, model.outputs
    if not calls:
        tokens = (spec.name for spec in inputs if spec.role == "tokens" and SEQUENCE in spec.axes)
        total = next((feeds[name].shape[1] for name in tokens), 0)
        return _taken(run(feeds), outputs, total)
    held = {spec.name: feeds[spec.name] for spec in inputs if spec.role == "cache"}
    parts: list[list[Array]] = []
    end = 0
    for new in calls:
        start, end = end, end + new
        call_feeds = {}
        for spec in inputs:
            array = feeds[spec.name]
            if SEQUENCE in spec.axes:
                array = np.take(array, range(start, end), axis=spec.axes.index(SEQUENCE))
            elif TOTAL in spec.axes:
                array = np.take(array, range(end), axis=spec.axes.index(TOTAL))
            call_feeds[spec.name] = _refilled(held[spec.name], array, spec, start) if spec.name in held else array
        parts.append(run(call_feeds))
        presents = [y for y, spec in zip(parts[-1], outputs, strict=True) if set(PRESENT) & set(spec.axes)]
        held = dict(zip(held, presents, strict=True))
    columns = list(zip(*parts, strict=True))
    joined = [
        np.concatenate(column, spec.axes.index(SEQUENCE)) if SEQUENCE in spec.axes else column[-1]
        for column, spec in zip(columns, outputs, strict=True)
    ]
    return _taken(joined, outputs, end)


def whole(run: Run, model: Interface) -> Run:
    """``run`` for a sequence in one call, its caches without unused slots."""
    return partial(in_calls, run, model=model, calls=())


def _refilled(cache: Array, first: Array, spec: InputSpec, used: int) -> Array:
    """``cache`` whose slots from ``used`` on hold what they do in ``first``."""
    if CAPACITY not in spec.axes or not used:
        return cache
    axis = spec.axes.index(CAPACITY)
    unused = range(used, first.shape[axis])
    return np.concatenate((np.take(cache, range(used), axis=axis), np.take(first, unused, axis=axis)), axis)


def _taken(found: Sequence[Array], outputs: Sequence[OutputSpec], total: int) -> list[Array]:
    return [
        np.take(y, range(total), axis=spec.axes.index(CAPACITY)) if CAPACITY in spec.axes else y
        for y, spec in zip(found, outputs, strict=True)
    ]
