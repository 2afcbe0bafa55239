"""The inputs of a point, seeded by the point, so that every caller gets the same. Imports no torch.

Inputs are well-conditioned where outputs have few elements: not those for which an output is small by chance. A
relative error means little where the scale is the magnitude of one or two elements that happen to be near zero: two
right programs then differ by many times 16 eps. Of 24 right models with one element a token or a sentence 11 failed
without this choice. Wide outputs are never small as a whole.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from posexport.base.example_inputs import example_input, indices, with_sizes
from posexport.base.sizes import frames, samples
from posexport.base.spec import (
    BATCH,
    CAPACITY,
    ENCODER_SEQUENCE,
    FRAMES,
    HEIGHT,
    PAST,
    PROMPT_MASK,
    SAMPLES,
    SEQUENCE,
    TOKENS,
    TOTAL,
    WIDTH,
    Axis,
    InputSpec,
    Interface,
    OutputSpec,
    compared_outputs,
    masked_axis,
)
from posexport.base.targets.dtypes import INT8
from posexport.errors import PosexportError
from posexport.graph.lowering.blocks import BLOCK
from posexport.proof.criterion import Array, rows
from posexport.proof.grid.point import PADDINGS, GridPoint

Feeds = dict[str, Array]
#: past tokens and the new ones are drawn as one sequence
_SEQUENCES = (SEQUENCE, ENCODER_SEQUENCE, TOTAL)
#: unused slots of a static KV cache; caches with room have as many more as there are tokens
_UNUSED = 3
#: contents of unused slots: N(0, 1) values, NaN, or infinities between values; no result may depend on them
UNUSED = ("values", "nan", "large", "infinite")
_LARGE = 1e38
#: the rank of a mask of pixels
_OF_PIXELS = 3
#: the share of tokens that an input of role ``flags`` marks, and of those before and after images
_FLAGGED, _STARTS = 0.1, 0.25


def draw(point: GridPoint, inputs: Sequence[InputSpec], variant: int = 0) -> Feeds:
    """An array for every input: random ids that are not the padding id, N(0, 1) values, and the point's padding.

    A ``variant`` has other ids and values and the same padding.

    Padded places hold the padding id, type 0, mask 0, and values that are random like all others: who reads them errs.
    """
    rng = np.random.default_rng([*_seed(point), *([variant] if variant else [])])
    feeds = {}
    for spec in inputs:
        # what has one size at every point is the same at every point: an encoder need not read another sound each time
        generator = np.random.default_rng([point.batch, variant, len(spec.name)]) if is_fixed(spec) else rng
        feeds[spec.name] = _input(spec, point, generator)
    real = {}
    for spec in inputs:
        if spec.role == "lengths":
            real[spec.name] = keep_mask(point).sum(1).astype(spec.dtype)
        elif spec.role == "indices":
            real[spec.name] = indices(keep_mask(point).sum(1), feeds[spec.name].shape[1], rng)
    return with_sizes(inputs, feeds, rng) | real


def is_fixed(spec: InputSpec) -> bool:
    """Whether an input of real numbers has one size, and one value for a batch size, at every point."""
    return spec.role == "values" and not any(isinstance(axis, str) and axis != BATCH for axis in spec.axes)


def keep_mask(point: GridPoint, axis: str = SEQUENCE) -> NDArray[np.bool_]:
    """True for the tokens of ``axis`` that are no padding, [B, T].

    A row of audio samples keeps at least as many as one token needs, and every row as many as the model takes at least.
    """
    length = size_of(axis, point)
    least = max(samples(1, point.convolutions), point.least) if axis == SEQUENCE else 1
    rng = np.random.default_rng([*_seed(point), _SEQUENCES.index(SEQUENCE if axis == TOTAL else axis)])
    keep_BT = np.ones((point.batch, length), dtype=np.bool_)
    if point.padding == "none" or length <= least:
        return keep_BT
    for index in range(point.batch):
        if point.padding == "ragged":
            # one row is whole, the others lose different amounts on different sides
            pads, left = (0 if index == 0 else int(rng.integers(1, length - least + 1))), index % 2 == 0
        elif point.padding == "ragged-right":
            pads, left = (0 if index == 0 else int(rng.integers(1, length - least + 1))), False
        else:
            most = 1 if point.padding == "few" else max(1, length // 3)
            pads, left = min(most, length - least), point.padding == "left"
        if pads:
            keep_BT[index, slice(0, pads) if left else slice(length - pads, length)] = False
    return keep_BT


def token_mask(
    point: GridPoint, inputs: Sequence[InputSpec], output: OutputSpec | None = None
) -> NDArray[np.bool_] | None:
    """The tokens that count in an output; None where no mask says so, or none is padding."""
    if point.cached:
        return None
    if output is not None and FRAMES in output.axes and not point.convolutions:
        return None  # which frames of a user's module are padding is not known
    far = output is not None and ENCODER_SEQUENCE in output.axes
    axes = (ENCODER_SEQUENCE,) if far else (SEQUENCE, TOTAL)
    if not any(masked_axis(spec) in axes for spec in inputs):
        return None
    return keep_mask(point, ENCODER_SEQUENCE) if far else tokens_of(keep_mask(point), point.convolutions)


def tokens_of(keep_BT: NDArray[np.bool_], convolutions: Sequence[tuple[int, int]]) -> NDArray[np.bool_]:
    """Which tokens are real where ``keep_BT`` says which samples are, padded on the right only."""
    if not convolutions:
        return keep_BT
    counts = [frames(int(keep_T.sum()), convolutions) for keep_T in keep_BT]
    return np.arange(frames(keep_BT.shape[1], convolutions))[None, :] < np.array(counts)[:, None]


def spread(keep_BT: NDArray[np.bool_], spec: InputSpec, shape: Sequence[int]) -> NDArray[np.bool_]:
    """Which entries of an input with ``spec``'s axes belong to real tokens."""
    axis = sequence_axis(spec)
    if axis is None:
        return np.ones(shape, dtype=np.bool_)
    view = [1] * len(shape)
    view[axis] = shape[axis]
    if BATCH in spec.axes:
        batch = spec.axes.index(BATCH)
        view[batch] = keep_BT.shape[0]
        return np.broadcast_to((keep_BT if batch < axis else keep_BT.T).reshape(view), shape)
    return np.broadcast_to(keep_BT[0].reshape(view), shape)


def sequence_axis(spec: InputSpec) -> int | None:
    """The input's sequence axis (the last one), or None."""
    places = [i for i, axis in enumerate(spec.axes) if axis in _SEQUENCES]
    return places[-1] if places else None


def _input(spec: InputSpec, point: GridPoint, rng: np.random.Generator) -> Array:
    shape = [size_of(axis, point) for axis in spec.axes]
    axis = sequence_axis(spec)
    real = (
        np.ones(shape, dtype=np.bool_) if axis is None else spread(keep_mask(point, str(spec.axes[axis])), spec, shape)
    )
    if spec.role == "positions" and point.position_ids_given:
        return _numbers(shape, spec.size, rng)
    values = example_input(spec, shape, rng)
    if spec.name == PROMPT_MASK:
        values = _prompt(real, rng)
    elif spec.role == "mask" and spec.axes[-1] == SAMPLES:
        values = _padded_sounds(point, shape, rng)
    elif spec.role == "mask" and axis is None and len(shape) == _OF_PIXELS:
        values = _padded_images(shape, rng)
    elif spec.role in ("mask", "flags"):
        values = real ^ bool(spec.padding) if spec.role == "mask" else real & (rng.random(shape) < _FLAGGED)
    elif spec.role == "places":
        values = np.where(_unpadded_patches(shape, rng)[..., None], values, -1)
    elif spec.role == "blocks":
        values = real & _images(shape, (*point.calls, point.length)[0], rng)
    elif CAPACITY in spec.axes:
        # only drawn tokens are written yet
        used = np.arange(shape[spec.axes.index(CAPACITY)]) < point.cached
        used = used.reshape([-1 if each == CAPACITY else 1 for each in spec.axes])
        values = np.where(used, values, unused_slots(values, unused_kind(point)))
    elif spec.role in ("tokens", "types"):
        values = np.where(real, values, spec.padding if spec.role == "tokens" else 0)
    return np.asarray(values, dtype=spec.dtype, order="C")


def _padded_sounds(point: GridPoint, shape: Sequence[int], rng: np.random.Generator) -> NDArray[np.bool_]:
    """Samples that are no padding, [B, N], which is on the right: two thirds and more, in a batch all of one row."""
    batch, samples_of_row = shape
    most = min(samples_of_row // 3, samples_of_row - dict(point.least_sizes).get(SAMPLES, 1))
    pads_B1 = rng.integers(0, most + 1, (batch, 1)) if point.padding != "none" else np.zeros((batch, 1), np.int64)
    if batch > 1:
        pads_B1[0] = 0
    kept_BN: NDArray[np.bool_] = np.arange(samples_of_row) < samples_of_row - pads_B1
    return kept_BN


def _padded_images(shape: Sequence[int], rng: np.random.Generator) -> NDArray[np.bool_]:
    """Pixels that are no padding, [B, H, W]: all of the first image, at least half of each edge of the others."""
    keep_BHW = np.zeros(shape, dtype=np.bool_)
    for image, keep_HW in enumerate(keep_BHW):
        height, width = (int(rng.integers((edge + 1) // 2, edge + 1)) if image else edge for edge in shape[1:])
        keep_HW[:height, :width] = True
    return keep_BHW


def _unpadded_patches(shape: Sequence[int], rng: np.random.Generator) -> NDArray[np.bool_]:
    """Patches that are no padding, [B, P]: all of the first image, at least half of the others."""
    images, patches = shape[:2]
    counts_B1 = rng.integers((patches + 1) // 2, patches + 1, (images, 1))
    counts_B1[0] = patches
    kept_BP: NDArray[np.bool_] = np.arange(patches) < counts_B1
    return kept_BP


def _prompt(real_BT: NDArray[np.bool_], rng: np.random.Generator) -> NDArray[np.bool_]:
    """The first tokens of each row that is real: any number of them, but not all."""
    count_B1 = (rng.random((len(real_BT), 1)) * real_BT.sum(1, keepdims=True)).astype(np.int64)
    prompt_BT: NDArray[np.bool_] = real_BT & (real_BT.cumsum(1) <= count_B1)
    return prompt_BT


def _images(shape: Sequence[int], first: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Tokens of images, of several lengths, all in the first call, which reads ``first`` tokens."""
    odd_BT: NDArray[np.bool_] = (rng.random(shape) < _STARTS).cumsum(1) % 2 == 1
    return odd_BT & (np.arange(shape[1]) < first)


def unused_kind(point: GridPoint) -> str:
    """What unused slots of the static KV caches of a point hold: everything, by the points of 17 tokens and of more."""
    # lengths by their remainder of 7: the long ones, with a ragged batch each, differ
    turn = point.batch // 2 + point.length % 7 + PADDINGS.index(point.padding) + len(point.calls)
    return UNUSED[turn % len(UNUSED)]


def roomy(point: GridPoint) -> bool:
    """Whether the static KV caches of a point are at most half used; lowerings differ by how much of one is used."""
    return bool((point.batch // 2 + PADDINGS.index(point.padding) // 2 + point.length // BLOCK) % 2)


def unused_slots(values: Array, kind: str) -> Array:
    """``values`` as unused slots of one of `UNUSED` hold them."""
    if kind == "values":
        return values
    if values.dtype == INT8.numpy:  # exponents of scales too, which no table has
        return np.full_like(values, 127 if kind == "large" else -128)
    if kind == "infinite":
        return np.where(values > 1, np.inf, np.where(values < -1, -np.inf, values))
    return np.full_like(values, np.nan if kind == "nan" else _LARGE)


def _numbers(shape: Sequence[int], limit: int | None, rng: np.random.Generator) -> NDArray[np.int64]:
    """Positions that rows do not share: each one further than the row before, as far as there is room.

    Of several axes of positions, [3, B, T], the others are any below the largest of these.
    """
    *axes, batch, length = shape
    room = batch if limit is None else limit - length
    positions_BT: NDArray[np.int64] = np.minimum(np.arange(batch)[:, None] + 1, room) + np.arange(length)
    if not axes:
        return positions_BT
    coordinates = rng.integers(0, int(positions_BT.max()) + 1, (axes[0] - 1, batch, length))
    return np.concatenate((positions_BT[None], coordinates))


def size_of(axis: Axis, point: GridPoint) -> int:
    """How large an axis of an input is at a point."""
    if isinstance(axis, int):
        return axis
    new = point.length - point.cached
    sizes: dict[str, int | None] = {BATCH: point.batch, SEQUENCE: new, TOTAL: point.length, PAST: point.cached}
    sizes[ENCODER_SEQUENCE] = point.encoder_length
    sizes[CAPACITY] = point.length + _UNUSED + point.length * roomy(point)
    if point.image is not None:
        sizes = {BATCH: point.batch, HEIGHT: point.image[0], WIDTH: point.image[1]}
    sizes |= dict(point.sizes)
    size = sizes.get(axis)
    if size is None:
        raise PosexportError(f"unknown axis name {axis!r}; use {' or '.join(sizes)}, or a number for a fixed size")
    return size


def _seed(point: GridPoint) -> list[int]:
    sizes = [*(point.image or ()), *dict(point.sizes).values()]
    return [point.batch, point.length, PADDINGS.index(point.padding), point.encoder_length or 0, *sizes]


#: an output of fewer elements than this has its inputs chosen
FEW = 8
#: among how many draws: at least, at most, and tokens of all draws together
DRAWS = (4, 32, 256)


def inputs_of(point: GridPoint, model: Interface, definition: Callable[[Feeds], list[Array]]) -> Feeds:
    """The point's inputs; where one of its outputs has few elements, the draw on which its outputs are largest.

    ``definition`` runs the model by PyTorch. Sizes are compared for each output with its mean over the draws,
    and the output that fares worst decides.
    """
    inputs, outputs = model.inputs, compared_outputs(model)
    if not any(elements(point, inputs, spec) < FEW for spec in outputs):
        return draw(point, inputs)
    least, most, tokens = DRAWS
    draws = min(most, max(least, tokens // (point.batch * point.tokens)))
    drawn = [draw(point, inputs, variant) for variant in range(draws)]
    keeps = [token_mask(point, inputs, spec) for spec in outputs]
    scales = np.zeros((draws, len(outputs)))
    for variant, feeds in enumerate(drawn):
        for index, (spec, y, keep_BT) in enumerate(zip(outputs, definition(feeds), keeps, strict=True)):
            values = (y_T if keep_T is None else y_T[keep_T] for y_T, _, keep_T in rows(y, y, spec.axes, keep_BT))
            scales[variant, index] = max(float(np.abs(y_T).max(initial=0.0)) for y_T in values)
    means = scales.mean(0)
    fares = np.where(means > 0, scales / np.where(means > 0, means, 1.0), 1.0).min(1)
    return drawn[int(np.argmax(fares))]


def elements(point: GridPoint, inputs: Sequence[InputSpec], spec: OutputSpec) -> int:
    """How many elements of the output are compared."""
    sizes = dict(point.sizes)
    width = math.prod(axis if isinstance(axis, int) else sizes.get(axis, 1) for axis in spec.axes if axis != BATCH)
    if not set(TOKENS) & set(spec.axes):
        return point.batch * width
    keep_BT = token_mask(point, inputs, spec)
    tokens = point.encoder_length or 1 if ENCODER_SEQUENCE in spec.axes else point.tokens
    return width * (point.batch * tokens if keep_BT is None else int(keep_BT.sum()))
