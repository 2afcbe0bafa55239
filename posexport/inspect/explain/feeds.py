"""Inputs to profile a bundle on: random tokens and values, no padding, a cache that is full. Imports no torch."""

from collections.abc import Sequence

import numpy as np

from posexport.base.example_inputs import example_input, with_sizes
from posexport.base.sizes import multiple, samples
from posexport.base.spec import (
    BATCH,
    CAPACITY,
    CARRIED,
    ENCODER_SEQUENCE,
    HEIGHT,
    PAST,
    SEQUENCE,
    TOTAL,
    WIDTH,
    InputSpec,
    LengthContract,
    Limits,
)
from posexport.errors import PosexportError
from posexport.proof.grid.inputs import Feeds
from posexport.run.feeds import limit_sentence, prepare

#: tokens of a call where nothing else is said
_LENGTH = 128


def sizes(
    inputs: Sequence[InputSpec], limits: Limits, *, batch: int, length: int | None, past: int | None
) -> dict[str, int]:
    """The sizes of the named axes of the inputs.

    ``length``: new tokens (audio: samples), by default 128, or 1 with a ``past``; fewer if the bundle accepts fewer. An
    encoder-decoder's encoder reads past and new tokens together, up to its limit.

    Raises PosexportError for a past without a cache, lengths of a model of images, and more than the bundle takes.
    """
    axes = {axis for spec in inputs for axis in spec.axes}
    if past is not None and not axes & {PAST, CAPACITY}:
        raise PosexportError(f"--past {past} is about a decoder's cache, and this bundle has none; leave it out")
    behind = past or 0
    if limits.proof_image_sizes:
        if length is not None:
            raise PosexportError(f"--length {length} is about tokens, and this bundle takes images; leave it out")
        height, width = limits.proof_image_sizes[0]
        return {BATCH: batch, HEIGHT: height, WIDTH: width}
    # new tokens: within the limit, in steps that the bundle takes
    most = [] if limits.max_length is None else [limits.max_length]
    limits_of_length = most if SEQUENCE in limits.limited_axes else []
    if length is None:
        length = max(
            limits.min_length,
            min([samples(1 if past else _LENGTH, limits.convolutions), *_room(limits_of_length, behind)]),
        )
    length = multiple(length, limits.size_steps.get(SEQUENCE, 1))
    if any(length + behind > limit for limit in limits_of_length):
        with_past = f" with --past {behind}" if behind else ""
        raise PosexportError(f"--length {length}{with_past} is too long: {limit_sentence(limits)}; give less")
    # the other axes follow from past and new tokens
    far = min([length + behind, *(most if ENCODER_SEQUENCE in limits.limited_axes else [])])
    total = behind + length
    proof_sizes = limits.proof_sizes[-1] if limits.proof_sizes else {}
    return proof_sizes | {
        BATCH: batch,
        SEQUENCE: length,
        PAST: behind,
        TOTAL: total,
        CAPACITY: total,
        ENCODER_SEQUENCE: far,
    }


def _room(limits: Sequence[int], past: int) -> list[int]:
    return [max(1, limit - past) for limit in limits]


def draw(inputs: Sequence[InputSpec], limits: LengthContract, named: dict[str, int]) -> Feeds:
    """Arrays of those sizes for all inputs but positions and adapters that may be left out."""
    rng = np.random.default_rng(0)
    shapes = {spec.name: [axis if isinstance(axis, int) else named[axis] for axis in spec.axes] for spec in inputs}
    roles = ("tokens", "numbers", "values", *CARRIED, "mask", "grids", "lengths", "indices", "rows")
    fed = [spec for spec in inputs if spec.role in roles]
    arrays = with_sizes(inputs, {spec.name: example_input(spec, shapes[spec.name], rng) for spec in fed}, rng)
    left_out = {spec.name for spec in inputs if spec.role in ("positions", "adapters") and spec.default is not None}
    return {name: array for name, array in prepare(arrays, inputs, limits).items() if name not in left_out}
