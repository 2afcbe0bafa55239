"""The checks that every dynamic axis was seen to vary, and that a graph runs at the least sizes."""

from functools import partial
from pathlib import Path

from posexport.base.sizes import frames, multiple
from posexport.base.spec import BATCH, FRAMES, HEIGHT, PAST, SEQUENCE, TOTAL, WIDTH
from posexport.errors import PosexportError
from posexport.proof.subjects.half import widened
from posexport.proof.subjects.runner import Make, RunError, Runner
from posexport.proof.subjects.zero_weights import ZeroWeights
from posexport.run.providers import make_session
from posexport.sources.example import axis_sizes, example
from posexport.sources.source import Source

#: for a few calls whose values are not compared
_session = partial(make_session, spinning=False, denormals=False)


class TooSmallError(PosexportError):
    """A graph does not run at sizes that its module accepts."""


def check_least(source: Source, model: Path | bytes) -> None:
    """Run ``model`` at the least size of every axis. TooSmallError: it fails."""
    limits = source.limits
    least = {SEQUENCE: limits.min_length, **limits.min_sizes}
    sizes = {
        axis: multiple(least.get(axis, 1), limits.size_steps.get(axis, 1))
        for axis in axis_sizes(source.inputs, limits.trace_sizes)
    }
    if PAST in sizes:
        sizes |= {PAST: 0, TOTAL: sizes[SEQUENCE]}
    feeds = {name: tensor.numpy() for name, tensor in example(source.inputs, sizes).items()}
    try:
        Runner.of(source, model, source.part_specs, make=partial(_session, prepacking=False))(feeds)
    except RunError as err:
        raise TooSmallError(f"{source.name}: the graph fails at {sizes}, which the module takes: {err}") from err


def check_axes(source: Source, model: Path | bytes, *, prepacking: bool = False) -> None:
    """Run ``model`` at two sizes of every named axis, neither of them the traced one, and look at the outputs' shapes.

    The large weights of a definition are zeros meanwhile (`ZeroWeights`). ``prepacking``: as of `make_session`.

    Raises:
        PosexportError: naming the axis that the graph fixes, and where.
    """
    source = widened(source)
    opened = partial(_session, prepacking=prepacking)
    make: Make = opened if source.by_trial else ZeroWeights(opened)  # shapes of a user's module may depend on values
    runner = Runner.of(source, model, source.part_specs, make=make)
    for step in (1, 2):
        sizes = _untraced(source, step)
        feeds = {name: tensor.numpy() for name, tensor in example(source.inputs, sizes).items()}
        try:
            outputs = runner(feeds)
        except RunError as err:
            raise PosexportError(
                f"{source.name}: the graph fails at {sizes}, so an axis is not dynamic: {err}"
            ) from err
        steps = source.limits.convolutions
        known = {**sizes, FRAMES: frames(sizes.get(SEQUENCE, 0), steps)} if steps else sizes
        for spec, array in zip(source.outputs, outputs, strict=True):
            # how many patches, and frames of a user's module, there are is the definition's to say
            expected = tuple(
                known.get(axis, size) if isinstance(axis, str) else axis
                for axis, size in zip(spec.axes, array.shape, strict=True)
            )
            if array.shape != expected:
                raise PosexportError(
                    f"{source.name}: output {spec.name} has shape {array.shape} at {sizes}, it should have {expected}"
                )


def _untraced(source: Source, step: int) -> dict[str, int]:
    """Sizes of the named axes other than the traced ones; ``step``: 1 or 2, for others each."""
    limits = source.limits
    sizes = {name: size + step for name, size in axis_sizes(source.inputs, limits.trace_sizes).items()}
    if images := limits.proof_image_sizes:
        sizes[HEIGHT], sizes[WIDTH] = images[(step - 1) % len(images)]
    if proof_sizes := limits.proof_sizes:
        sizes |= proof_sizes[-step % len(proof_sizes)]
    sizes = {axis: multiple(size, limits.size_steps.get(axis, 1)) for axis, size in sizes.items()}
    if BATCH in sizes and not source.by_trial:  # a row, of a recording or a picture, may cost seconds
        sizes[BATCH] = step
    limit = limits.max_length
    for axis in limits.limited_axes:
        if axis in sizes and limit is not None:
            sizes[axis] = max(limits.min_length, min(sizes[axis], limit + 1 - step))
    if PAST in sizes:
        sizes[PAST] = sizes[PAST] if limit is None else max(0, min(sizes[PAST], limit - sizes[SEQUENCE]))
        sizes[TOTAL] = sizes[SEQUENCE] + sizes[PAST]
    return sizes
