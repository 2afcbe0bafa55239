"""Properties that must hold between two runs of the model, checked beside the values. Imports no torch.

They need no float64 reference, so they also catch what the reference shares with the graph. Changes are relative to
the scale of the outputs. They are allowed as errors of values are: up to 8 times what PyTorch changes for the same pair
of inputs in the same precision. That counts up to the tolerance of the values at that length: beyond it is no rounding,
and the definition itself does not keep the promise.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from posexport.parity.criterion import Array, Measured, measure, tolerance
from posexport.parity.draw import Feeds, draw, ids, kept, sequence_axis, spread, tokens_of
from posexport.parity.grid import GridPoint
from posexport.parity.ort import RunError
from posexport.parity.report import Invariant, Verdict
from posexport.spec import (
    BATCH,
    ENCODER_SEQUENCE,
    HEIGHT,
    PATCHES,
    SEQUENCE,
    TOKENS,
    TOTAL,
    Axis,
    Envelope,
    InputSpec,
    OutputSpec,
    Padding,
    samples,
)
from posexport.targets.dtypes import MODEL_DTYPE, Precision

Run = Callable[[Feeds], list[Array]]
#: which tokens of an output are real; None: all
Keep = Callable[[OutputSpec], NDArray[np.bool_] | None]
#: the two runs of a promise compared
Test = Callable[["Promise"], Iterator[tuple[OutputSpec, Measured]]]
#: RoBERTa numbers its tokens by their ids, whatever the mask says: by definition this need not hold
_CONTENT = "padding contents change nothing"
#: tokens must be permuted for the control of positions: below this there is too little to permute
_ENOUGH = 4
#: a float64 definition whose outputs change by this part of float32's tolerance has no positions
_NO_ORDER = 1e-3


@dataclass(frozen=True, kw_only=True)
class Promise:
    """What the model promises, and how to run it. ``positional``: None where the encoding is not known; then, and for a
    user's module in any case, ``exact``, PyTorch's run in float64, is tried.

    ``definition`` is PyTorch's run in the model's ``precision``: every pair of inputs goes through it too.
    """

    run: Run
    definition: Run
    inputs: Sequence[InputSpec]
    outputs: Sequence[OutputSpec]
    envelope: Envelope
    shift_invariant: bool
    padding_invariant: bool
    reads_first_token: bool
    precision: Precision = MODEL_DTYPE.precision
    #: the user's, in place of the criterion
    tolerance: float | None = None
    causal: bool = False
    positional: bool | None
    exact: Run | None = None

    @property
    def masked(self) -> set[Axis]:
        """The sequences for which a mask says which of their tokens are padding."""
        found = {spec.axes[-1] for spec in self.inputs if spec.role == "mask"}
        # with an empty past all tokens are new
        return found | ({SEQUENCE} if TOTAL in found else set())


def check(promise: Promise, base: GridPoint, tolerances: Mapping[str, float]) -> Iterator[Invariant]:
    """All invariants at the size of ``base``; ``tolerances``: of the values of each output at that length."""
    length, memory = base.length, base.memory
    ragged = (promise.envelope.ragged if promise.masked else None) or "none"

    def point(padding: Padding = "none") -> GridPoint:
        return msgspec.structs.replace(base, batch=3, padding=padding)

    checks: list[tuple[str, Test]] = [
        ("batch neighbours do not change a row", lambda of: _alone(of, point(ragged))),
        ("reordering the batch reorders the outputs", lambda of: _rows(of, point(ragged))),
    ]
    if promise.causal and length > 1:
        checks.append(("later tokens change nothing", lambda of: _later(of, point())))
    if SEQUENCE in promise.masked and length > samples(1, base.convolutions):
        if promise.padding_invariant and "right" in promise.envelope.paddings:
            checks.append(("right padding changes nothing", lambda of: _padded(of, point(), left=False)))
        # both sequences must move together, or their distances change
        movable = promise.shift_invariant and "left" in promise.envelope.paddings
        if movable and (memory is None or ENCODER_SEQUENCE in promise.masked):
            checks.append(("left padding changes nothing", lambda of: _padded(of, point(), left=True)))
        # a left-padded row is answered at a padded token by whoever reads the first one
        side: Padding = "right" if promise.reads_first_token else ragged
        if side != "none":
            checks.append((_CONTENT, lambda of: _content(of, point(side))))
    for name, test in checks:
        yield _judged(promise, name, length, test, tolerances)
    yield _positions(promise, point(), length, tolerances)


def _judged(promise: Promise, name: str, length: int, test: Test, tolerances: Mapping[str, float]) -> Invariant:
    """The output that comes nearest to what is allowed decides."""
    changes = {spec.name: measured.error for spec, measured in test(replace(promise, run=promise.definition))}
    try:
        found = [(spec.name, got) for spec, got in test(promise)]
    except RunError as failure:
        return _unmeasured(name, length, "fail", str(failure))
    if name == _CONTENT:
        found = [(output, got) for output, got in found if changes[output] <= tolerances[output]]
    if not found:
        return _unmeasured(
            name, length, "skipped", "by definition it does not hold here, or only where no output can be compared"
        )
    # `min` in this order: a change that is not a number excuses nothing
    limits = {
        output: tolerance(promise.precision, output, min(tolerances[output], changes[output]), chosen=promise.tolerance)
        for output, _ in found
    }
    output, worst = max(found, key=lambda pair: pair[1].error / limits[pair[0]])
    limit, change = limits[output], changes[output]
    good = worst.error <= limit
    note = worst.note or ("" if good else f"{output} changes by {worst.error:.1e} of its scale, {limit:.1e} is allowed")
    if not good and change > tolerances[output]:
        note += f"; PyTorch's changes by {change:.1e}: the definition itself does not keep it"
    return Invariant(
        name=name,
        length=length,
        output=output,
        error=worst.error if np.isfinite(worst.error) else None,
        torch_change=change if np.isfinite(change) else None,
        tolerance=limit,
        verdict="pass" if good else "fail",
        note=note,
    )


def _unmeasured(name: str, length: int, verdict: Verdict, note: str) -> Invariant:
    return Invariant(name=name, length=length, output="", error=None, tolerance=None, verdict=verdict, note=note)


def _compared(
    promise: Promise, y: Sequence[Array], reference: Sequence[Array], keep: Keep, by_token: bool
) -> Iterator[tuple[OutputSpec, Measured]]:
    """``by_token``: leave out outputs without a length axis."""
    for spec, got, wanted in zip(promise.outputs, y, reference, strict=True):
        if set(TOKENS) & set(spec.axes) or not by_token:
            yield spec, measure(got, wanted, spec.axes, keep(spec))


def _alone(promise: Promise, point: GridPoint) -> Iterator[tuple[OutputSpec, Measured]]:
    feeds = draw(point, promise.inputs)
    whole = promise.run(feeds)
    alone = [
        promise.run({s.name: _take(feeds[s.name], s.axes, BATCH, [row]) for s in promise.inputs})
        for row in range(point.batch)
    ]
    # put together again: the scale is the batch's, as one row's may be small by luck
    joined = [
        np.concatenate(parts, axis=spec.axes.index(BATCH)) if BATCH in spec.axes else parts[0]
        for spec, parts in zip(promise.outputs, zip(*alone, strict=True), strict=True)
    ]
    yield from _compared(promise, joined, whole, lambda spec: _tokens(point, spec), by_token=False)


def _rows(promise: Promise, point: GridPoint) -> Iterator[tuple[OutputSpec, Measured]]:
    feeds, order = draw(point, promise.inputs), [*range(1, point.batch), 0]
    whole = promise.run(feeds)
    permuted = promise.run({s.name: _take(feeds[s.name], s.axes, BATCH, order) for s in promise.inputs})
    wanted = [_take(y, spec.axes, BATCH, order) for y, spec in zip(whole, promise.outputs, strict=True)]
    yield from _compared(promise, permuted, wanted, lambda spec: _tokens(point, spec)[order], by_token=False)


def _later(promise: Promise, point: GridPoint) -> Iterator[tuple[OutputSpec, Measured]]:
    """What the first half of the tokens gives, whatever the second half is."""
    feeds, other = draw(point, promise.inputs), draw(point, promise.inputs, 1)
    first = range(max(1, point.length // 2))
    changed = dict(feeds)
    for spec in promise.inputs:
        if SEQUENCE in spec.axes:
            axis = spec.axes.index(SEQUENCE)
            kept = np.take(feeds[spec.name], first, axis=axis)
            rest = np.take(other[spec.name], range(len(first), point.length), axis=axis)
            changed[spec.name] = np.concatenate((kept, rest), axis=axis)
    wanted, got = (
        [_take_tokens(y, spec.axes, first) for y, spec in zip(promise.run(given), promise.outputs, strict=True)]
        for given in (feeds, changed)
    )
    yield from _compared(promise, got, wanted, _all, by_token=True)


def _padded(promise: Promise, point: GridPoint, *, left: bool) -> Iterator[tuple[OutputSpec, Measured]]:
    """A shorter point, run as it is and padded to the point's length; the sequence attended to moves along."""
    pads = min(max(1, point.length // 3), point.length - samples(1, point.convolutions))
    memory = point.memory
    if memory is not None and ENCODER_SEQUENCE in promise.masked:
        memory = max(1, memory - pads)
    short = msgspec.structs.replace(point, length=point.length - pads, memory=memory)
    feeds = draw(short, promise.inputs)
    rng = np.random.default_rng(pads)
    padded = dict(feeds)
    for spec in promise.inputs:
        axis = sequence_axis(spec)
        if spec.role == "cache":  # a cache of fixed size must have places for the padding too
            padded[spec.name] = draw(point, [spec])[spec.name]
        elif axis is not None and spec.axes[axis] in promise.masked:
            padded[spec.name] = _pad(feeds[spec.name], spec, axis, pads, left, rng)
    wanted = promise.run(feeds)
    start = pads if left else 0
    real, far = (range(start, start + length) for length in (short.tokens, short.memory or 0))
    got = [_take_tokens(y, s.axes, real, far) for y, s in zip(promise.run(padded), promise.outputs, strict=True)]
    yield from _compared(promise, got, wanted, _all, by_token=left and promise.reads_first_token)


def _content(promise: Promise, point: GridPoint) -> Iterator[tuple[OutputSpec, Measured]]:
    feeds, rng = draw(point, promise.inputs), np.random.default_rng(point.length)
    changed = dict(feeds)
    for spec in promise.inputs:
        axis = sequence_axis(spec)
        if axis is not None and spec.axes[axis] in promise.masked and spec.role not in ("mask", "positions"):
            array = feeds[spec.name]
            real = spread(kept(point, str(spec.axes[axis])), spec, array.shape)
            other = rng.standard_normal(array.shape) if spec.role == "values" else ids(spec, array.shape, rng)
            changed[spec.name] = np.where(real, array, other).astype(array.dtype)

    def keep(spec: OutputSpec) -> NDArray[np.bool_]:
        return _tokens(point, spec)

    yield from _compared(promise, promise.run(changed), promise.run(feeds), keep, by_token=False)


def _positions(promise: Promise, point: GridPoint, length: int, tolerances: Mapping[str, float]) -> Invariant:
    """The control: permuted tokens give other outputs, unless there is no position encoding.

    The first token stays where it is, for outputs that are read there.
    """
    few = point.tokens < _ENOUGH if point.image is None else point.image[0] < 2 * promise.envelope.patch
    positional = (
        promise.positional if promise.exact is None or few else _tried(promise, promise.exact, point, tolerances)
    )
    name = "outputs depend on the order of tokens" if positional else "outputs follow the order of tokens"
    if positional is False and promise.exact is not None:
        name += ", as the module's do: it has no positions"
    if positional is None or few:
        note = "too few tokens to permute" if few else "it is not known whether the model has positions"
        if promise.exact is not None and not few:
            note = "in the module itself their order changes the outputs by less than the tolerance"
        return _unmeasured(name, length, "skipped", note)
    found = _judged(promise, name, length, lambda of: _permuted(of, point), tolerances)
    if not positional or found.error is None:
        return found
    # a difference counts from where values would be wrong, not from what PyTorch changes: that is the positions
    limit = tolerances[found.output]
    present = found.error > limit
    note = "" if present else "permuted tokens give the same outputs: the positions are not in the graph"
    return msgspec.structs.replace(found, tolerance=limit, verdict="pass" if present else "fail", note=note)


def _tried(promise: Promise, exact: Run, point: GridPoint, tolerances: Mapping[str, float]) -> bool | None:
    """Whether the definition's outputs depend on the order of tokens; None: by less than can be seen in float32."""
    compared = _permuted(replace(promise, run=exact), point)
    change = max((measured.error / tolerances[spec.name] for spec, measured in compared), default=0.0)
    return True if change > 1 else False if change < _NO_ORDER else None


def _permuted(promise: Promise, point: GridPoint) -> Iterator[tuple[OutputSpec, Measured]]:
    """Outputs for permuted tokens, against permuted outputs."""
    feeds = draw(point, promise.inputs)
    axis, order = _order(point, promise.envelope.patch)
    permuted = {s.name: _take(feeds[s.name], s.axes, axis, order) for s in promise.inputs}
    outputs = zip(promise.run(feeds), promise.outputs, strict=True)
    if point.image is None:
        wanted = [_take(y, s.axes, SEQUENCE, order) for y, s in outputs]
    else:
        wanted = [_take_rows(y, s.axes, point.image, promise.envelope.patch, order) for y, s in outputs]
    yield from _compared(promise, promise.run(permuted), wanted, _all, by_token=False)


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


def _all(spec: OutputSpec) -> None:
    """Nothing is padded."""
    del spec


def _tokens(point: GridPoint, spec: OutputSpec) -> NDArray[np.bool_]:
    """Which tokens of an output are real."""
    if ENCODER_SEQUENCE in spec.axes:
        return kept(point, ENCODER_SEQUENCE)
    return np.ones((point.batch, 1), dtype=np.bool_) if point.image else tokens_of(kept(point), point.convolutions)


def _take_tokens(array: Array, axes: Sequence[Axis], index: Sequence[int], far: Sequence[int] | None = None) -> Array:
    """Some tokens of ``array``; ``far``: of the sequence that is attended to (None: all)."""
    axis = next((axis for axis in axes if axis in TOKENS), None)
    chosen = far if axis == ENCODER_SEQUENCE else index
    return array if axis is None or chosen is None else np.take(array, np.asarray(chosen), axis=list(axes).index(axis))


def _take(array: Array, axes: Sequence[Axis], axis: str, index: Sequence[int]) -> Array:
    return np.take(array, np.asarray(index), axis=list(axes).index(axis)) if axis in axes else array


def _pad(array: Array, spec: InputSpec, axis: int, pads: int, left: bool, rng: np.random.Generator) -> Array:
    shape = list(array.shape)
    shape[axis] = pads
    if spec.role == "values":
        fill = rng.standard_normal(shape).astype(array.dtype)
    else:
        empty = {"tokens": spec.padding, "positions": -1}.get(spec.role, 0)
        fill = np.full(shape, empty, dtype=array.dtype)
    return np.concatenate((fill, array) if left else (array, fill), axis=axis)
