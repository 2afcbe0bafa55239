"""Properties that must hold between two runs of the model, checked beside the values. Imports no torch.

They need no reference, so they also catch what the reference shares with the graph. Errors and tolerances are on the
scale of the outputs: the tolerance is that of the values at the same length.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from posexport.parity.criterion import Array, Measured, measure
from posexport.parity.draw import Feeds, draw, ids, kept, sequence_axis, spread
from posexport.parity.grid import GridPoint, Padding
from posexport.parity.ort import RunError
from posexport.parity.report import Invariant, Verdict
from posexport.spec import BATCH, ENCODER_SEQUENCE, SEQUENCE, Axis, InputSpec, OutputSpec

Run = Callable[[Feeds], list[Array]]
#: tokens must be permuted for the control of positions: below this there is too little to permute
_ENOUGH = 4


@dataclass(frozen=True, kw_only=True)
class Promise:
    """What the model promises, and how to run it. ``positional``: None where the encoding is not known.

    ``definition`` is PyTorch's run in the model's precision: it says whether ids of padded tokens matter by definition.
    """

    run: Run
    definition: Run
    inputs: Sequence[InputSpec]
    outputs: Sequence[OutputSpec]
    shift_invariant: bool
    padding_invariant: bool
    reads_first_token: bool
    positional: bool | None

    @property
    def masked(self) -> set[Axis]:
        """The sequences for which a mask says which of their tokens are padding."""
        return {spec.axes[-1] for spec in self.inputs if spec.role == "mask"}


def check(promise: Promise, length: int, memory: int | None, tolerances: Mapping[str, float]) -> Iterator[Invariant]:
    """All invariants at ``length``, with the tolerance of each output."""

    def point(padding: Padding = "none") -> GridPoint:
        return GridPoint(batch=3, length=length, padding=padding, memory=memory)

    checks: list[tuple[str, Callable[[], Iterator[tuple[OutputSpec, Measured]]]]] = [
        ("a row does not change with its neighbours", lambda: _alone(promise, point("ragged"))),
        ("permuted rows give permuted outputs", lambda: _rows(promise, point("ragged"))),
    ]
    if SEQUENCE in promise.masked and length > 1:
        if promise.padding_invariant:
            checks.append(("right padding changes nothing", lambda: _padded(promise, point(), left=False)))
        # both sequences must move together, or their distances change
        if promise.shift_invariant and (memory is None or ENCODER_SEQUENCE in promise.masked):
            checks.append(("left padding changes nothing", lambda: _padded(promise, point(), left=True)))
        # a left-padded row is answered at a padded token by whoever reads the first one
        side: Padding = "right" if promise.reads_first_token else "ragged"
        checks.append(("the content of padding changes nothing", lambda: _content(promise, point(side), tolerances)))
    for name, test in checks:
        yield _judged(name, length, test, tolerances)
    yield _positions(promise, point(), length, tolerances)


def _judged(
    name: str,
    length: int,
    test: Callable[[], Iterator[tuple[OutputSpec, Measured]]],
    tolerances: Mapping[str, float],
) -> Invariant:
    """The output that comes nearest to its tolerance decides."""
    try:
        found = [(spec.name, got) for spec, got in test()]
    except RunError as failure:
        return _unmeasured(name, length, "fail", str(failure))
    if not found:
        return _unmeasured(
            name, length, "skipped", "by definition it does not hold here, or only where no output can be compared"
        )
    output, worst = max(found, key=lambda pair: pair[1].error / tolerances[pair[0]])
    limit = tolerances[output]
    good = worst.error <= limit
    note = worst.note or ("" if good else f"{output} changes by {worst.error:.1e} of its scale, {limit:.1e} is allowed")
    return Invariant(
        name=name,
        length=length,
        output=output,
        error=worst.error if np.isfinite(worst.error) else None,
        tolerance=limit,
        verdict="pass" if good else "fail",
        note=note,
    )


def _unmeasured(name: str, length: int, verdict: Verdict, note: str) -> Invariant:
    return Invariant(name=name, length=length, output="", error=None, tolerance=None, verdict=verdict, note=note)


def _compared(
    promise: Promise, y: Sequence[Array], reference: Sequence[Array], keep_BT: NDArray[np.bool_] | None, by_token: bool
) -> Iterator[tuple[OutputSpec, Measured]]:
    """``by_token``: leave out outputs without a length axis."""
    for spec, got, wanted in zip(promise.outputs, y, reference, strict=True):
        if SEQUENCE in spec.axes or not by_token:
            yield spec, measure(got, wanted, spec.axes, keep_BT)


def _alone(promise: Promise, point: GridPoint) -> Iterator[tuple[OutputSpec, Measured]]:
    feeds, keep_BT = draw(point, promise.inputs), kept(point)
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
    yield from _compared(promise, joined, whole, keep_BT, by_token=False)


def _rows(promise: Promise, point: GridPoint) -> Iterator[tuple[OutputSpec, Measured]]:
    feeds, order = draw(point, promise.inputs), [*range(1, point.batch), 0]
    whole = promise.run(feeds)
    permuted = promise.run({s.name: _take(feeds[s.name], s.axes, BATCH, order) for s in promise.inputs})
    wanted = [_take(y, spec.axes, BATCH, order) for y, spec in zip(whole, promise.outputs, strict=True)]
    yield from _compared(promise, permuted, wanted, kept(point)[order], by_token=False)


def _padded(promise: Promise, point: GridPoint, *, left: bool) -> Iterator[tuple[OutputSpec, Measured]]:
    """A shorter point, run as it is and padded to the point's length; the sequence attended to moves along."""
    pads = max(1, point.length // 3)
    memory = point.memory
    if memory is not None and ENCODER_SEQUENCE in promise.masked:
        memory = max(1, memory - pads)
    short = GridPoint(batch=point.batch, length=point.length - pads, memory=memory)
    feeds = draw(short, promise.inputs)
    rng = np.random.default_rng(pads)
    padded = dict(feeds)
    for spec in promise.inputs:
        axis = sequence_axis(spec)
        if axis is not None and spec.axes[axis] in promise.masked:
            padded[spec.name] = _pad(feeds[spec.name], spec, axis, pads, left, rng)
    wanted = promise.run(feeds)
    real = range(pads, point.length) if left else range(point.length - pads)
    got = [_take(y, s.axes, SEQUENCE, real) for y, s in zip(promise.run(padded), promise.outputs, strict=True)]
    yield from _compared(promise, got, wanted, None, by_token=left and promise.reads_first_token)


def _content(
    promise: Promise, point: GridPoint, tolerances: Mapping[str, float]
) -> Iterator[tuple[OutputSpec, Measured]]:
    feeds, rng = draw(point, promise.inputs), np.random.default_rng(point.length)
    changed = dict(feeds)
    for spec in promise.inputs:
        axis = sequence_axis(spec)
        if axis is not None and spec.axes[axis] in promise.masked and spec.role != "mask":
            array = feeds[spec.name]
            real = spread(kept(point, str(spec.axes[axis])), spec, array.shape)
            other = rng.standard_normal(array.shape) if spec.role == "values" else ids(spec, array.shape, rng)
            changed[spec.name] = np.where(real, array, other).astype(array.dtype)
    keep_BT = kept(point)
    # RoBERTa numbers its tokens by their ids, whatever the mask says: then the definition changes as well
    defined = _compared(promise, promise.definition(changed), promise.definition(feeds), keep_BT, by_token=False)
    stable = {spec.name for spec, got in defined if got.error <= tolerances[spec.name]}
    for out, got in _compared(promise, promise.run(changed), promise.run(feeds), keep_BT, by_token=False):
        if out.name in stable:
            yield out, got


def _positions(promise: Promise, point: GridPoint, length: int, tolerances: Mapping[str, float]) -> Invariant:
    """The control: permuted tokens give other outputs, unless there is no position encoding.

    The first token stays where it is, for outputs that are read there.
    """
    name = "outputs depend on the order of tokens" if promise.positional else "outputs follow the order of tokens"
    if promise.positional is None or length < _ENOUGH:
        note = "it is not known whether the model has positions" if length >= _ENOUGH else "too few tokens to permute"
        return _unmeasured(name, length, "skipped", note)
    order = [0, *(1 + np.random.default_rng(length).permutation(length - 1))]

    def test() -> Iterator[tuple[OutputSpec, Measured]]:
        feeds = draw(point, promise.inputs)
        permuted = {s.name: _take(feeds[s.name], s.axes, SEQUENCE, order) for s in promise.inputs}
        wanted = [_take(y, s.axes, SEQUENCE, order) for y, s in zip(promise.run(feeds), promise.outputs, strict=True)]
        yield from _compared(promise, promise.run(permuted), wanted, None, by_token=False)

    found = _judged(name, length, test, tolerances)
    if not promise.positional or found.error is None:
        return found
    present = found.verdict == "fail"
    note = "" if present else "permuted tokens give the same outputs: the positions are not in the graph"
    return msgspec.structs.replace(found, verdict="pass" if present else "fail", note=note)


def _take(array: Array, axes: Sequence[Axis], axis: str, index: Sequence[int]) -> Array:
    return np.take(array, np.asarray(index), axis=list(axes).index(axis)) if axis in axes else array


def _pad(array: Array, spec: InputSpec, axis: int, pads: int, left: bool, rng: np.random.Generator) -> Array:
    shape = list(array.shape)
    shape[axis] = pads
    if spec.role == "values":
        fill = rng.standard_normal(shape).astype(array.dtype)
    else:
        fill = np.full(shape, spec.padding if spec.role == "tokens" else 0, dtype=array.dtype)
    return np.concatenate((fill, array) if left else (array, fill), axis=axis)
