"""Inputs of ids that are indices of rows of other inputs, as the edges of a graph are of its nodes.

The example has as many rows as ids at least. A module that indexes them refuses an id that is their number, and takes
it where there is a row more. Ids of a table of as many rows are refused there too.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from posexport.modules.axes.example_calls import (
    ExampleCalls,
    Shapes,
    SpentError,
    TensorAxis,
    counts_rows,
    resized,
    with_id,
)


def find_indexed(calls: ExampleCalls) -> dict[str, tuple[TensorAxis, ...]]:
    """By input of ids the axes that they are indices of. Its calls are not counted."""
    tried = len(calls.failures)
    found = dict[str, tuple[TensorAxis, ...]]()
    try:
        for name, tensor in calls.tensors.items():
            if _holds_ids(name, tensor) and (axes := _axes_of(calls, name)):
                found[name] = axes
    except SpentError:
        pass
    del calls.failures[tried:]
    return found


def _holds_ids(name: str, tensor: Tensor) -> bool:
    is_number = tensor.is_floating_point() or tensor.dtype == torch.bool
    return not (is_number or "mask" in name.lower() or counts_rows(name, tensor)) and int(tensor.min()) >= 0


def _axes_of(calls: ExampleCalls, name: str) -> tuple[TensorAxis, ...]:
    """The fewest axes that must have a row more for one more id of an input; empty where the ids are of a table."""
    shapes = {other: tuple(tensor.shape) for other, tensor in calls.tensors.items()}
    largest = int(calls.tensors[name].max())
    for size in sorted({size for shape in shapes.values() for size in shape if size > max(largest, 1)}):
        if _accepts(calls, shapes, name, size):
            continue
        axes = [(other, axis) for other, shape in shapes.items() for axis in range(len(shape)) if shape[axis] == size]
        for chosen in _choices(axes):
            if _accepts(calls, _longer(shapes, chosen), name, size):
                return _needed(calls, shapes, chosen, name, size)
        return ()
    return ()


def _choices(axes: list[TensorAxis]) -> Iterator[list[TensorAxis]]:
    """The first axes together, one alone, and all: channels may have the same size by chance."""
    first = [place for place in axes if place[1] == 0]
    yield from dict.fromkeys(map(tuple, ([*first], *([place] for place in axes), axes)))  # type: ignore[misc]


def _needed(
    calls: ExampleCalls, shapes: Shapes, axes: Sequence[TensorAxis], name: str, size: int
) -> tuple[TensorAxis, ...]:
    needed = list(axes)
    for place in axes:
        fewer = [other for other in needed if other != place]
        if fewer and _accepts(calls, _longer(shapes, fewer), name, size):
            needed = fewer
    return tuple(needed)


def _longer(shapes: Shapes, axes: Sequence[TensorAxis]) -> Shapes:
    return {
        name: tuple(size + ((name, axis) in axes) for axis, size in enumerate(shape)) for name, shape in shapes.items()
    }


def _accepts(calls: ExampleCalls, shapes: Shapes, name: str, largest: int) -> bool:
    tensors = {other: resized(tensor, shapes[other]) for other, tensor in calls.tensors.items()}
    return calls.run({**tensors, name: with_id(tensors[name], calls.tensors[name], largest)}) is not None
