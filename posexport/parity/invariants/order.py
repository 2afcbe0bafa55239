"""The control: permuted tokens change the outputs where the model has positions, and only there. Imports no torch."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec
import numpy as np

from posexport.parity.criterion import Array
from posexport.parity.grid.inputs import draw
from posexport.parity.grid.point import GridPoint
from posexport.parity.invariants.judge import judged, unmeasured
from posexport.parity.invariants.promise import Changes, Promise, all_tokens, compared, take
from posexport.parity.proof import Run
from posexport.parity.report.points import Invariant
from posexport.spec import HEIGHT, PATCHES, SEQUENCE, Axis

#: tokens must be permuted for the control of positions: below this there is too little to permute
_ENOUGH = 4
#: a float64 definition whose outputs change by this part of float32's tolerance has no positions
_NO_ORDER = 1e-3


def order_of_tokens(promise: Promise, point: GridPoint, length: int, tolerances: Mapping[str, float]) -> Invariant:
    """The control: permuted tokens give other outputs, unless there is no position encoding.

    The first token stays where it is, for outputs that are read there.
    """
    few = point.tokens < _ENOUGH if point.image is None else point.image[0] < 2 * promise.limits.patch_size
    positional = promise.promises.positional
    if promise.exact is not None and not few:
        tried = _tried(promise, promise.exact, point, tolerances)
        if not promise.wide:
            positional = tried
        elif positional is not False:  # its tolerance is too wide to say that there are none
            positional = tried or None
    name = "outputs depend on the order of tokens" if positional else "outputs follow the order of tokens"
    if positional is False and promise.exact is not None:
        name += ", as the module's do: it has no positions"
    if positional is None or few:
        note = "too few tokens to permute" if few else "it is not known whether the model has positions"
        if promise.exact is not None and not few:
            note = "in the module itself their order changes the outputs by less than the tolerance"
        return unmeasured(name, length, "skipped", note)
    invariant = judged(promise, name, length, lambda p: _permuted(p, point), tolerances)
    if not positional or invariant.error is None:
        return invariant
    # a difference counts from where values would be wrong, not from what PyTorch changes: that is the positions
    limit = tolerances[invariant.output]
    present = invariant.error > limit
    note = "" if present else "permuted tokens give the same outputs: the positions are not in the graph"
    return msgspec.structs.replace(invariant, tolerance=limit, verdict="pass" if present else "fail", note=note)


def _tried(promise: Promise, exact: Run, point: GridPoint, tolerances: Mapping[str, float]) -> bool | None:
    """Whether the definition's outputs depend on the order of tokens; None: by less than can be seen in float32."""
    compared = _permuted(replace(promise, run=exact), point)
    change = max((measured.error / tolerances[spec.name] for spec, measured in compared), default=0.0)
    return True if change > 1 else False if change < _NO_ORDER else None


def _permuted(promise: Promise, point: GridPoint) -> Changes:
    """Outputs for permuted tokens, against permuted outputs."""
    feeds = draw(point, promise.inputs)
    axis, order = _order(point, promise.limits.patch_size)
    permuted = {s.name: take(feeds[s.name], s.axes, axis, order) for s in promise.inputs}
    outputs = zip(promise.run(feeds), promise.outputs, strict=True)
    if point.image is None:
        expected = [take(y, s.axes, SEQUENCE, order) for y, s in outputs]
    else:
        expected = [_take_rows(y, s.axes, point.image, promise.limits.patch_size, order) for y, s in outputs]
    yield from compared(promise, promise.run(permuted), expected, all_tokens, by_token=False)


def _order(point: GridPoint, patch: int) -> tuple[str, list[int]]:
    """What to permute: the tokens but the first, or the rows of an image's patches."""
    rng = np.random.default_rng(point.length)
    if point.image is None:
        return SEQUENCE, [0, *(1 + rng.permutation(point.length - 1))]
    rows = point.image[0] // patch
    order = np.roll(np.arange(rows), 1)
    pixels = [row * patch + pixel for row in order for pixel in range(patch)]
    return HEIGHT, [*pixels, *range(rows * patch, point.image[0])]


def _take_rows(array: Array, axes: Sequence[Axis], image: tuple[int, int], patch: int, pixels: Sequence[int]) -> Array:
    """The rows of patches in the order of their pixels, behind the tokens that stand nowhere."""
    rows, columns = (side // patch for side in image)
    if PATCHES not in axes:
        return array
    axis = list(axes).index(PATCHES)
    prefix = array.shape[axis] - rows * columns
    order = [pixels[row * patch] // patch for row in range(rows)]
    patches = [prefix + row * columns + column for row in order for column in range(columns)]
    return np.take(array, [*range(prefix), *patches], axis=axis)
