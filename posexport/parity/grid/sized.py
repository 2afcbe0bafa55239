"""The sizes of axes that are neither batch nor sequence: sides of images, samples of sound, of a user's module."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle

import msgspec

from posexport.errors import PosexportError
from posexport.parity.grid.point import GridPoint
from posexport.spec import Limits

Sizes = Mapping[str, int]


def alone(limits: Limits, lengths: Sequence[int] | None, batches: Sequence[int]) -> list[GridPoint]:
    """The points of a module without a sequence; ``lengths`` are sizes of every axis."""
    axes = list(limits.proof_sizes[0])
    for length in lengths or ():
        if (reason := _refused(limits, dict.fromkeys(axes, length))) is not None:
            raise PosexportError(f"length {length} cannot be compared: {reason}")
    chosen = limits.proof_sizes if lengths is None else [dict.fromkeys(axes, length) for length in lengths]
    points = [_point(limits, batch, sizes) for sizes in chosen for batch in batches]
    if lengths is None:
        points += [
            msgspec.structs.replace(_point(limits, 1, sizes), must_be_rejected=True)
            for sizes in beyond(limits, limits.proof_sizes)
        ]
    return sorted(points, key=lambda point: point.length)


def beside(limits: Limits, points: Sequence[GridPoint]) -> list[GridPoint]:
    """Points of sequences, with the sizes of the other axes in turn."""
    turn = cycle(limits.proof_sizes)
    sized = [msgspec.structs.replace(point, sizes=tuple(next(turn).items())) for point in points]
    accepted = next(point for point in sized if not point.must_be_rejected)
    rejected = [
        msgspec.structs.replace(accepted, sizes=tuple(sizes.items()), must_be_rejected=True)
        for sizes in beyond(limits, limits.proof_sizes)
    ]
    return sized + rejected


def beyond(limits: Limits, proven: Sequence[Sizes]) -> Iterator[dict[str, int]]:
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


def _point(limits: Limits, batch: int, sizes: Sizes) -> GridPoint:
    tokens = max(1, int(math.prod(sizes.values()) / limits.elements_per_token))
    return GridPoint(batch=batch, length=tokens, sizes=tuple(sizes.items()), length_estimated=True)
