"""Random values of inputs by their specs, nothing padded: to trace, to prove and to profile with. Imports no torch."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from posexport.base.spec import BATCH, PATCHES, SEQUENCE, InputSpec
from posexport.base.targets.dtypes import INT8
from posexport.errors import PosexportError

#: labels of points: of the object, of something else, no point, padding
PROMPTS = (1, 0, -1, -10)
#: the share of tokens in whose place features of an image stand
_PLACED = 0.5


def example_input(spec: InputSpec, shape: Sequence[int], rng: np.random.Generator) -> NDArray[Any]:
    """An array of ``shape``: random ids or N(0, 1) values; nothing is masked or flagged, positions are counted.

    Some tokens are of images, where a model takes some: a graph without any has a mask that looks causal.
    """
    if spec.role == "cache" and spec.dtype == INT8.name:
        # channels up to about 3, with the scale behind them (`posexport.nn.rounded_cache`)
        ends = np.broadcast_to([64, -12], (*shape[:-1], 2))
        return np.concatenate([rng.integers(-127, 128, (*shape[:-1], shape[-1] - 2)), ends], -1).astype(spec.dtype)
    if spec.role == "cache":
        return rng.standard_normal(shape).astype(spec.dtype)
    if spec.role == "blocks":
        return rng.integers(0, 2, shape)
    constants = {"mask": 1 - spec.padding, "flags": 0, "state": 0, "positions": -1, "grids": spec.size, "lengths": 1}
    constants |= {"indices": 0, "rows": 0}
    if spec.role in constants:
        return np.full(shape, constants[spec.role], spec.dtype)
    return random_content(spec, shape, rng)


def with_sizes(
    inputs: Sequence[InputSpec], arrays: Mapping[str, NDArray[Any]], rng: np.random.Generator
) -> dict[str, NDArray[Any]]:
    """``arrays``; grids are drawn so that they have as many patches together as the images do, and rows are full."""
    sized = {}
    for spec in inputs:
        if spec.role == "lengths" and spec.name in arrays:
            sized[spec.name] = np.full_like(arrays[spec.name], size_among(inputs, arrays, SEQUENCE))
        if spec.role == "indices" and spec.name in arrays:
            rows, count = arrays[spec.name].shape
            tokens_B = np.full(rows, size_among(inputs, arrays, SEQUENCE))
            sized[spec.name] = indices(tokens_B, count, rng)
        if isinstance(spec.rows_of, str) and spec.name in arrays:
            rows = size_among(inputs, arrays, spec.rows_of)
            sized[spec.name] = rng.integers(0, rows, arrays[spec.name].shape)
        if spec.role == "shapes" and spec.name in arrays:
            shapes_B2 = arrays[spec.name]
            # the mask of the same images
            mask = next(other for other in inputs if other.role == "mask" and other.axes == [spec.axes[0], spec.size])
            sized[mask.name] = (np.arange(spec.size or 1) < shapes_B2.prod(1, keepdims=True)).astype(mask.dtype)
        if spec.role == "grids" and spec.name in arrays:
            side, images = spec.size or 1, arrays[spec.name].shape[0]
            tokens = size_among(inputs, arrays, PATCHES) // side**2
            if BATCH in spec.axes:
                grids = [
                    _grid(int(tokens if row == 0 else rng.integers(1, tokens + 1)), rng, 1) for row in range(images)
                ]
            else:
                ends = np.sort(rng.choice(np.arange(1, max(tokens, images)), images - 1, replace=False))
                grids = [_grid(int(share), rng) for share in np.diff([0, *ends, max(tokens, images)])]
            sized[spec.name] = np.array([[frames, side * height, side * width] for frames, height, width in grids])
    return {**arrays, **sized}


def indices(tokens_B: NDArray[Any], count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """``count`` tokens of each row, ascending, [B, N]: all of the first row, of the others some are left out (-1)."""
    picked_BN = np.sort(rng.integers(0, tokens_B[:, None], (len(tokens_B), count)), axis=1)
    kept_B = rng.integers((count + 1) // 2, count + 1, len(tokens_B))
    kept_B[0] = count
    return np.where(np.arange(count) < kept_B[:, None], picked_BN, -1)


def size_among(inputs: Sequence[InputSpec], arrays: Mapping[str, NDArray[Any]], axis: str) -> int:
    """How large ``axis`` is in the arrays."""
    spec = next(spec for spec in inputs if axis in spec.axes and spec.name in arrays)
    return int(arrays[spec.name].shape[spec.axes.index(axis)])


def _grid(tokens: int, rng: np.random.Generator, most: int = 2) -> tuple[int, int, int]:
    """Frames (in some draws 2, if ``most`` says so), rows and columns of a number of tokens."""
    frames = 2 if most > 1 and tokens % 2 == 0 and rng.random() < 0.3 else 1
    heights = [n for n in range(1, tokens // frames + 1) if tokens // frames % n == 0]
    height = int(rng.choice(heights))
    return frames, height, tokens // frames // height


def _places(patches: int, spec: InputSpec, rng: np.random.Generator) -> NDArray[np.int64]:
    """Columns and rows of a number of patches of an image, [P, 2], row by row; each a multiple of ``spec.size``."""
    side = spec.size or 1
    tokens = max(1, patches // side**2)
    _, _, width = _grid(tokens, rng)
    columns, rows = spec.column_sizes or (patches, patches)
    if not patches / rows <= width * side <= columns:
        # where another form has more columns or rows than there are positions, the one nearest to a square
        width = max(n for n in range(1, math.isqrt(tokens) + 1) if tokens % n == 0)
    index = np.arange(patches)
    return np.stack((index % (width * side), index // (width * side)), -1)


def _values(spec: InputSpec, shape: Sequence[int], rng: np.random.Generator) -> NDArray[Any]:
    values: NDArray[Any] = rng.standard_normal(shape).astype(spec.dtype)
    for column, size in enumerate(spec.column_sizes):
        if size:
            values[:, column] = _from_least(spec, rng.integers(size, size=shape[0]))
    if spec.positive is True:
        values = np.abs(values)
    return values if spec.at_most is UNSET else (values % 1 * spec.at_most).astype(spec.dtype)


def random_content(spec: InputSpec, shape: Sequence[int], rng: np.random.Generator) -> NDArray[Any]:
    """N(0, 1) values, boxes or ids, as the role of the input says."""
    if spec.role == "values":
        return _values(spec, shape, rng)
    if spec.role == "points":
        return (rng.random(shape) * (spec.size or 1)).astype(spec.dtype)
    if spec.role == "places":
        return np.stack([_places(shape[1], spec, rng) for _ in range(shape[0])])
    if spec.role == "shapes":
        rows = rng.integers(1, (spec.size or 1) + 1, shape[0])
        return np.stack((rows, rng.integers(1, (spec.size or 1) // rows + 1)), -1)
    if spec.role == "prompts":
        return rng.choice(PROMPTS, shape)
    return _boxes(spec, shape, rng) if spec.role == "boxes" else random_ids(spec, shape, rng)


def _boxes(spec: InputSpec, shape: Sequence[int], rng: np.random.Generator) -> NDArray[Any]:
    """Left, top, right and bottom edges below the input's size, [.., 4]: the right one is not left of the left one."""
    size = spec.size or 1
    corners = np.sort(rng.random((*shape[:-1], 2, 2)) * size, axis=-2).reshape(shape)
    return (np.floor(corners) if spec.dtype.startswith("int") else corners).astype(spec.dtype)


def _from_least(spec: InputSpec, ids: NDArray[np.int64]) -> NDArray[np.int64]:
    return ids if spec.least is UNSET else np.maximum(ids, spec.least)


def random_ids(spec: InputSpec, shape: Sequence[int], rng: np.random.Generator) -> NDArray[np.int64]:
    """Random ids below the input's size; tokens are never the padding id. Rows choose adapters in turn."""
    if spec.size is None or spec.size < 1:
        raise PosexportError(f"input {spec.name} holds ids but its size is {spec.size}: say how many ids there are")
    if spec.column_sizes:
        return _from_least(spec, rng.integers(0, np.broadcast_to(spec.column_sizes, shape)))
    if spec.role == "adapters":  # each row another one, as far as there are some
        return (np.arange(shape[0]) + rng.integers(spec.size)) % spec.size
    if spec.role == "types" or spec.size == 1:
        return rng.integers(0, spec.size, shape)
    ids = rng.integers(0, spec.size - 1, shape)
    ids = np.where(ids >= spec.padding, ids + 1, ids) if 0 <= spec.padding < spec.size else ids
    ids = _from_least(spec, ids)
    return ids if spec.placeholder is UNSET else np.where(rng.random(shape) < _PLACED, spec.placeholder, ids)
