"""The promises of a model, and changes of its inputs that must not change its outputs. Imports no torch.

Other rows, later tokens, padding, unused slots of a cache, positions shifted.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from posexport.base.example_inputs import random_content
from posexport.base.sizes import samples
from posexport.base.spec import (
    BATCH,
    BATCH_ROWS,
    ENCODER_SEQUENCE,
    FRAMES,
    SEQUENCE,
    TOKENS,
    TOTAL,
    Axis,
    InputSpec,
    LengthContract,
    OutputSpec,
    Promises,
    masked_axis,
)
from posexport.proof.criterion import Array, Measured, RealTokens, measure
from posexport.proof.grid.inputs import draw, keep_mask, sequence_axis, spread, tokens_of
from posexport.proof.grid.point import GridPoint
from posexport.proof.proof import Judge, Run

#: which tokens of an output are real
RealTokensOf = Callable[[OutputSpec], RealTokens]
#: the outputs of two runs compared, one after the other
Changes = Iterator[tuple[OutputSpec, Measured]]
#: RoBERTa counts its tokens by their ids, whatever the mask says: by definition this need not hold
CONTENT = "padding contents change nothing"


@dataclass(frozen=True, kw_only=True)
class Promise:
    """What the model promises, and how to run it.

    ``exact``, for a user's module, is PyTorch's run in float64, which shows whether it has positions.
    ``definition`` is PyTorch's run in the graph's precision: it runs every pair of inputs too. ``wide``: the
    tolerance of 16 bits, or of rounded activations, may be too wide to show positions that are there.
    """

    run: Run
    definition: Run
    inputs: Sequence[InputSpec]
    outputs: Sequence[OutputSpec]
    limits: LengthContract
    promises: Promises
    judge: Judge
    exact: Run | None = None
    wide: bool = False

    @property
    def masked(self) -> set[Axis]:
        """The sequences with a padding mask."""
        axes = {axis for spec in self.inputs if (axis := masked_axis(spec)) is not None}
        # with an empty past all tokens are new
        return axes | ({SEQUENCE} if TOTAL in axes else set())


def compared(
    promise: Promise, y: Sequence[Array], reference: Sequence[Array], real: RealTokensOf, by_token: bool
) -> Changes:
    """``by_token``: leave out outputs without a length axis."""
    for spec, got, expected in zip(promise.outputs, y, reference, strict=True):
        if set(TOKENS) & set(spec.axes) or not by_token:
            yield spec, measure(got, expected, spec.axes, real(spec))


def all_tokens(spec: OutputSpec) -> None:
    """Nothing is padded."""
    del spec


def real_tokens(point: GridPoint, spec: OutputSpec) -> RealTokens:
    """Which tokens of an output are real."""
    if ENCODER_SEQUENCE in spec.axes:
        # of states that are computed from other sizes it is not known
        return None if point.encoder_length is None else keep_mask(point, ENCODER_SEQUENCE)
    if FRAMES in spec.axes and not point.convolutions:
        return None  # which frames of a user's module are padding is not known
    return np.ones((point.batch, 1), dtype=np.bool_) if point.image else tokens_of(keep_mask(point), point.convolutions)


def take_tokens(array: Array, axes: Sequence[Axis], index: Sequence[int], far: Sequence[int] | None = None) -> Array:
    """Some tokens of ``array``; ``far``: of the sequence that is attended to (None: all)."""
    for place, axis in enumerate(axes):
        chosen = far if axis == ENCODER_SEQUENCE else index if axis in TOKENS else None
        array = array if chosen is None else np.take(array, np.asarray(chosen), axis=place)
    return array


def take(array: Array, axes: Sequence[Axis], axis: str, index: Sequence[int]) -> Array:
    """``index`` along every axis of this name."""
    for place, name in enumerate(axes):
        array = np.take(array, np.asarray(index), axis=place) if name == axis else array
    return array


def alone(promise: Promise, point: GridPoint) -> Changes:
    feeds = draw(point, promise.inputs)
    whole = promise.run(feeds)
    alone = [
        promise.run({s.name: take(feeds[s.name], s.axes, BATCH, [row]) for s in promise.inputs})
        for row in range(point.batch)
    ]
    # put together again: the scale is the batch's, as one row's may be small by chance
    joined = [
        np.concatenate(parts, axis=spec.axes.index(BATCH)) if BATCH in spec.axes else parts[0]
        for spec, parts in zip(promise.outputs, zip(*alone, strict=True), strict=True)
    ]
    yield from _of_rows(compared(promise, joined, whole, lambda spec: real_tokens(point, spec), by_token=False))


def reordered(promise: Promise, point: GridPoint) -> Changes:
    feeds, order = draw(point, promise.inputs), [*range(1, point.batch), 0]
    whole = promise.run(feeds)
    permuted = promise.run({s.name: take(feeds[s.name], s.axes, BATCH, order) for s in promise.inputs})
    expected = [take(y, spec.axes, BATCH, order) for y, spec in zip(whole, promise.outputs, strict=True)]

    def keep(spec: OutputSpec) -> RealTokens:
        real = real_tokens(point, spec)
        return None if real is None else real[order]

    yield from _of_rows(compared(promise, permuted, expected, keep, by_token=False))


def _of_rows(changes: Changes) -> Changes:
    """Those of outputs in which it is known what belongs to which row of the batch."""
    return ((spec, error) for spec, error in changes if not any(str(a).endswith(BATCH_ROWS) for a in spec.axes))


def later(promise: Promise, point: GridPoint) -> Changes:
    """What the first half of the tokens gives, whatever the second half is; none is of an image, which would see it."""
    feeds, other = draw(point, promise.inputs), draw(point, promise.inputs, 1)
    for spec in promise.inputs:
        if spec.role == "blocks":
            feeds[spec.name] = other[spec.name] = np.zeros_like(feeds[spec.name])
    first = range(max(1, point.length // 2))
    changed = dict(feeds)
    for spec in promise.inputs:
        if SEQUENCE in spec.axes:
            axis = spec.axes.index(SEQUENCE)
            start = np.take(feeds[spec.name], first, axis=axis)
            rest = np.take(other[spec.name], range(len(first), point.length), axis=axis)
            changed[spec.name] = np.concatenate((start, rest), axis=axis)
    expected, got = (
        [take_tokens(y, spec.axes, first) for y, spec in zip(promise.run(inputs), promise.outputs, strict=True)]
        for inputs in (feeds, changed)
    )
    yield from compared(promise, got, expected, all_tokens, by_token=True)


def padded(promise: Promise, point: GridPoint, *, left: bool) -> Changes:
    """A shorter point, run as it is and padded to the point's length; the sequence attended to moves along."""
    pads = min(max(1, point.length // 3), point.length - samples(1, point.convolutions))
    memory = point.encoder_length
    if memory is not None and ENCODER_SEQUENCE in promise.masked:
        memory = max(1, memory - pads)
    short = msgspec.structs.replace(point, length=point.length - pads, encoder_length=memory)
    feeds = draw(short, promise.inputs)
    rng = np.random.default_rng(pads)
    padded = dict(feeds)
    for spec in promise.inputs:
        axis = sequence_axis(spec)
        if spec.role == "cache":  # a static KV cache must have slots for the padding too
            padded[spec.name] = draw(point, [spec])[spec.name]
        elif axis is not None and spec.axes[axis] in promise.masked:
            padded[spec.name] = _pad(feeds[spec.name], spec, axis, pads, left, rng)
    expected = promise.run(feeds)
    start = pads if left else 0
    real, far = (range(start, start + length) for length in (short.tokens, short.encoder_length or 0))
    got = [take_tokens(y, s.axes, real, far) for y, s in zip(promise.run(padded), promise.outputs, strict=True)]
    yield from compared(promise, got, expected, all_tokens, by_token=left and promise.promises.reads_first_token)


def content(promise: Promise, point: GridPoint) -> Changes:
    feeds, rng = draw(point, promise.inputs), np.random.default_rng(point.length)
    changed = dict(feeds)
    for spec in promise.inputs:
        axis = sequence_axis(spec)
        if axis is not None and spec.axes[axis] in promise.masked and spec.role not in ("mask", "positions", "blocks"):
            array = feeds[spec.name]
            real = spread(keep_mask(point, str(spec.axes[axis])), spec, array.shape)
            other = random_content(spec, array.shape, rng)
            changed[spec.name] = np.where(real, array, other).astype(array.dtype)

    def keep(spec: OutputSpec) -> RealTokens:
        return real_tokens(point, spec)

    yield from compared(promise, promise.run(changed), promise.run(feeds), keep, by_token=False)


def _pad(array: Array, spec: InputSpec, axis: int, pads: int, left: bool, rng: np.random.Generator) -> Array:
    shape = list(array.shape)
    shape[axis] = pads
    if spec.role == "values":
        fill = rng.standard_normal(shape).astype(array.dtype)
    else:
        empty = {"tokens": spec.padding, "positions": -1}.get(spec.role, 0)
        fill = np.full(shape, empty, dtype=array.dtype)
    return np.concatenate((fill, array) if left else (array, fill), axis=axis)
