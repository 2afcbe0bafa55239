"""Other ids at a point where a user's module gives NaN for a row of padding alone.

A module that takes ids and no mask finds padding by an id of its vocabulary, as ESM-2 does. If a drawn row has that id
alone, as a row of one token may, all its keys are masked with -inf, and its softmax is NaN. That row proves nothing.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from posexport.base.spec import BATCH, InputSpec
from posexport.proof.criterion import NOT_FINITE
from posexport.proof.grid.inputs import Feeds, draw
from posexport.proof.grid.point import GridPoint
from posexport.proof.references.computed import Computed
from posexport.sources.source import Source

#: draws that are tried
_DRAWS = 64


def drawn_again(
    point: GridPoint,
    source: Source,
    feeds: Feeds,
    truths: list[Computed],
    computed: Callable[[GridPoint, Feeds], list[Computed]],
) -> tuple[Feeds, list[Computed]]:
    """Feeds and outputs without a row of padding alone, with a note; unchanged if NaN have another reason."""
    ids = next((spec for spec in source.inputs if spec.role == "tokens"), None)
    if ids is None or any(spec.role == "mask" for spec in source.inputs) or not _has_nan(truths):
        return feeds, truths
    padding = _padding_id(feeds, ids, truths)
    for variant in range(1, _DRAWS) if padding is not None else ():
        other = draw(point, source.inputs, variant)
        if not (other[ids.name] == padding).all(1).any() and not _has_nan(again := computed(point, other)):
            note = f"drawn again: the module itself gives NaN for a row of the id {padding} alone, which it masks"
            return other, [replace(truth, baseline=truth.baseline._replace(note=note)) for truth in again]
    return feeds, truths


def _has_nan(truths: list[Computed]) -> bool:
    return any(truth.baseline.note == NOT_FINITE for truth in truths)


def _padding_id(feeds: Feeds, ids: InputSpec, truths: list[Computed]) -> int | None:
    """The only id of all rows with NaN in float64; None if they have several, or another row has that id alone."""
    rows = feeds[ids.name]
    bad = np.zeros(len(rows), bool)
    for truth in truths:
        if BATCH in truth.spec.axes:
            by_row = np.moveaxis(truth.y64, truth.spec.axes.index(BATCH), 0)
            bad |= np.isnan(by_row.reshape(len(rows), -1)).any(1)
    used = {int(number) for number in np.unique(rows[bad])}
    alone = (rows == next(iter(used), -1)).all(1)
    return used.pop() if len(used) == 1 and bool((alone == bad).all()) else None
