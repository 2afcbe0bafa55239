"""The points of inputs without a sequence: sizes of images, and of the axes of users' modules. Imports no torch."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle

import msgspec

from posexport.base.spec import HEIGHT, SAMPLES, WIDTH, Limits
from posexport.errors import PosexportError
from posexport.proof.grid.point import BATCHES, GridPoint


def image_points(limits: Limits, lengths: Sequence[int] | None) -> list[GridPoint]:
    """Every size of image, alone and in a batch; ``lengths`` are sides of square ones."""
    least = [min(image[side] for image in limits.proof_image_sizes) for side in (0, 1)]
    for side in lengths or ():
        if side < max(least):
            raise PosexportError(f"an image of {side}x{side} is below the model's minimum of {least[0]}x{least[1]}")
    sizes = limits.proof_image_sizes if lengths is None else [(side, side) for side in lengths]
    patch = limits.patch_size
    grid = [
        GridPoint(batch=batch, length=max(1, height // patch) * max(1, width // patch), image=(height, width))
        for height, width in sizes
        for batch in BATCHES
    ]
    if lengths is None:
        too_small = _too_small(limits, limits.proof_image_sizes[-1])
        grid += [msgspec.structs.replace(grid[0], image=image, must_be_rejected=True) for image in too_small]
    return sorted(grid, key=lambda point: point.length)


def _too_small(limits: Limits, image: tuple[int, int]) -> list[tuple[int, int]]:
    """A proven image, cut to one pixel less than the smallest height or width."""
    height, width = image
    least = limits.min_sizes
    cut = [(least[HEIGHT] - 1, width)] if least.get(HEIGHT, 1) > 1 else []
    return cut + ([(height, least[WIDTH] - 1)] if least.get(WIDTH, 1) > 1 else [])


Sizes = Mapping[str, int]


def sized_points(limits: Limits, lengths: Sequence[int] | None, batches: Sequence[int]) -> list[GridPoint]:
    """The points of a module without a sequence; ``lengths`` are sizes of every axis."""
    axes = list(limits.proof_sizes[0])
    for length in lengths or ():
        if (reason := _refused(limits, dict.fromkeys(axes, length))) is not None:
            raise PosexportError(f"length {length} cannot be compared: {reason}")
    chosen = limits.proof_sizes if lengths is None else [dict.fromkeys(axes, length) for length in lengths]
    points = [point_of(limits, batch, sizes) for sizes in chosen for batch in batches]
    if lengths is None:
        points += [
            msgspec.structs.replace(point_of(limits, 1, sizes), must_be_rejected=True)
            for sizes in sizes_beyond(limits, limits.proof_sizes)
        ]
    return sorted(points, key=lambda point: point.length)


def points_of_sizes(limits: Limits, points: Sequence[GridPoint]) -> list[GridPoint]:
    """Points of sequences, with the sizes of the other axes in turn."""
    turn = cycle(limits.proof_sizes)
    sized = [with_sizes(limits, point, next(turn)) for point in points]
    accepted = next(point for point in sized if not point.must_be_rejected)
    rejected = [
        msgspec.structs.replace(accepted, sizes=tuple(sizes.items()), must_be_rejected=True)
        for sizes in sizes_beyond(limits, limits.proof_sizes)
    ]
    return sized + rejected


def with_sizes(limits: Limits, point: GridPoint, sizes: Sizes) -> GridPoint:
    """A point of sequences with ``sizes`` of the other axes."""
    least, tokens = tuple(limits.min_sizes.items()), int(sizes.get(SAMPLES, 0) / limits.elements_per_token)
    return msgspec.structs.replace(point, sizes=tuple(sizes.items()), least_sizes=least, sound_tokens=tokens)


def sizes_beyond(limits: Limits, proven: Sequence[Sizes]) -> Iterator[dict[str, int]]:
    """Proven sizes with one that the graph must refuse: too small, too large, between two steps."""
    for axis in proven[0]:
        step = limits.size_steps.get(axis, 1)
        least, most = limits.min_sizes.get(axis, step), limits.max_sizes.get(axis)
        wrong = [least - step] if least > step else []
        wrong += [] if most is None else [most + step]
        wrong += [least + 1] if step > 1 else []
        yield from ({**proven[-1], axis: size} for size in wrong)


def _refused(limits: Limits, sizes: Sizes) -> str | None:
    for axis, size in sizes.items():
        step = limits.size_steps.get(axis, 1)
        if size < limits.min_sizes.get(axis, 1):
            return f"{axis} must be at least {limits.min_sizes[axis]}"
        if size > limits.max_sizes.get(axis, size):
            return f"{axis} must be at most {limits.max_sizes[axis]}"
        if size % step:
            return f"{axis} must be a multiple of {step}"
    return None


def point_of(limits: Limits, batch: int, sizes: Sizes) -> GridPoint:
    """The point of a module without a sequence at ``sizes`` of its axes."""
    tokens = max(1, int(math.prod(sizes.values()) / limits.elements_per_token))
    return GridPoint(batch=batch, length=tokens, sizes=tuple(sizes.items()), length_estimated=True)
