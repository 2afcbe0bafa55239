"""Sizes to trace at of which a module makes more than one frame, patch or token.

The tracer makes a constant of a size 1. A codec with padding accepts a single sample, of which every convolution makes
one frame; the example shows where it makes more.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from posexport.base.spec import BATCH
from posexport.errors import PosexportError
from posexport.modules.drawn_calls import DrawnCalls, Sizes
from posexport.sources.example import example


def with_many_frames(calls: DrawnCalls, base: Sizes, tensors: Mapping[str, Tensor], steps: Mapping[str, int]) -> Sizes:
    """``base``, with axes doubled, below the example's, until no result of a layer has 1 where the example has more."""
    of_example = example_sizes(calls, tensors)
    shown = _shapes(calls, of_example, tensors) if tensors else []
    sizes = base
    while True:
        shapes = _shapes(calls, sizes, example(calls.inputs, sizes))
        if len(shapes) != len(shown) or not any(map(_is_one_of_many, shapes, shown)):
            return sizes
        larger = {axis: _doubled(size, of_example.get(axis, 0) - steps.get(axis, 1)) for axis, size in sizes.items()}
        larger |= {axis: size for axis, size in sizes.items() if axis.endswith(BATCH)}
        if larger == sizes:
            return sizes
        sizes = larger


def _doubled(size: int, most: int) -> int:
    return max(size, min(2 * size, most))


def _is_one_of_many(shape: tuple[int, ...], shown: tuple[int, ...]) -> bool:
    return len(shape) == len(shown) and any(size == 1 < other for size, other in zip(shape, shown, strict=True))


def _shapes(calls: DrawnCalls, sizes: Sizes, tensors: Mapping[str, Tensor]) -> list[tuple[int, ...]]:
    """The shapes of all results of submodules, in the order of their calls, without the axis of the batch."""
    shapes: list[tuple[int, ...]] = []

    def note(module: Any, inputs: Any, output: Any) -> None:
        del module, inputs
        if isinstance(output, Tensor):
            shapes.append(tuple(output.shape[1:]))

    hooks = [submodule.register_forward_hook(note) for submodule in calls.module.modules()]
    try:
        calls.run(sizes, tensors)
    except PosexportError:
        return []
    finally:
        for hook in hooks:
            hook.remove()
    return shapes


def example_sizes(calls: DrawnCalls, tensors: Mapping[str, Tensor]) -> Sizes:
    """The sizes of the example's named axes."""
    sizes: dict[str, tuple[int, str]] = {}
    for spec in calls.inputs:
        if spec.name not in tensors:
            continue
        for axis, size in zip(spec.axes, tensors[spec.name].shape, strict=True):
            if isinstance(axis, int):
                continue
            before, name = sizes.setdefault(axis, (size, spec.name))
            if before != size:
                raise PosexportError(
                    f"{calls.argument}: axis {axis} has the size {before} in the example's {name} and {size} in its "
                    f"{spec.name}; name the axes: axes= in Python, the third thing that a factory returns"
                )
    return {axis: size for axis, (size, _) in sizes.items()}
