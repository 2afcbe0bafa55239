"""The axes of outputs: an input's, a fixed size, or one that is computed from inputs' sizes and gets a new name."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from torch import Tensor, nn

from posexport.base.spec import (
    BATCH,
    BATCH_ROWS,
    ENCODER_SEQUENCE,
    FRAMES,
    HEIGHT,
    PATCHES,
    SAMPLES,
    SEQUENCE,
    WIDTH,
    Axis,
    OutputSpec,
)
from posexport.errors import PosexportError
from posexport.modules.axes.memory import Made

Sizes = dict[str, int]
Shapes = dict[str, tuple[int, ...]]


def output_axes(
    argument: str,
    run: Callable[[Sizes], Mapping[str, Tensor]],
    first: Sizes,
    second: Sizes,
    further: Sequence[Sizes],
    shapes_at: Callable[[Sizes], Mapping[str, tuple[int, ...]]],
) -> list[OutputSpec]:
    """The axes of every output, from calls of ``run`` at sizes.

    ``first`` and ``second`` differ in every axis. ``further`` sizes, which the module may refuse, tell an axis of an
    input, or a fixed one, from one that is so only there: at multiples of a patch, or ``min(7, length)``; the shapes
    there are those of ``shapes_at``.

    Raises:
        PosexportError: outputs have other names or numbers of axes at other sizes.
    """
    results = [run(sizes) for sizes in (first, second)]
    ranks = [{name: tensor.dim() for name, tensor in outputs.items()} for outputs in results]
    if ranks[0] != ranks[1]:
        raise PosexportError(
            f"{argument}: the module gives outputs with other names or numbers of axes, {ranks[0]} and {ranks[1]}, "
            f"at sizes {first} and {second}; they must not depend on sizes"
        )
    trials = [(sizes, _shapes(outputs)) for sizes, outputs in zip((first, second), results, strict=True)]
    for sizes in further:
        with suppress(PosexportError):
            shapes = dict(shapes_at(sizes))
            if {name: len(shape) for name, shape in shapes.items()} == ranks[0]:
                trials.append((sizes, shapes))
    computed = _ComputedAxes(run, first, second)
    specs = []
    for name, rank in ranks[0].items():
        axes: list[Axis] = []
        for number in range(rank):
            sizes_of_axis = tuple(shapes[name][number] for _, shapes in trials)
            match = [axis for axis in first if sizes_of_axis == tuple(sizes[axis] for sizes, _ in trials)]
            if len(set(sizes_of_axis)) == 1:
                axes.append(sizes_of_axis[0])
            else:
                axes.append(match[0] if match else computed.name(name, number, sizes_of_axis))
        specs.append(OutputSpec(name=name, axes=axes))
    return specs


def _shapes(outputs: Mapping[str, Tensor]) -> Shapes:
    return {name: tuple(tensor.shape) for name, tensor in outputs.items()}


class _ComputedAxes:
    """Names of axes that are computed from the inputs' sizes: two that always have the same size have one name."""

    def __init__(self, run: Callable[[Sizes], Mapping[str, Tensor]], first: Sizes, second: Sizes) -> None:
        self._run, self._first, self._second = run, first, second
        self._alone: list[Shapes] = []
        self._names: dict[tuple[int, ...], str] = {}

    def name(self, output: str, number: int, before: tuple[int, ...]) -> str:
        """The name of axis ``number`` of an output, which has the sizes ``before`` from the first ones on."""
        if not self._alone:
            for axis in self._first:
                self._alone.append(_shapes(self._run({**self._first, axis: self._second[axis]})))
        alone = [shapes[output][number] for shapes in self._alone]
        sizes = (*before, *alone)
        if sizes not in self._names:
            changing = [axis for axis, size in zip(self._first, alone, strict=True) if size != before[0]]
            own = f"{output}_axis_{number}" + (f"_{BATCH_ROWS}" if BATCH in changing else "")
            label = _label(changing) or own
            self._names[sizes] = label if label not in self._names.values() else own
        return self._names[sizes]


def _label(inputs: Sequence[str]) -> str:
    """The usual name of an axis that is computed from these axes of inputs; empty where there is none."""
    if len(inputs) == 1:
        axis = inputs[0]
        if axis.endswith((SEQUENCE, ENCODER_SEQUENCE, SAMPLES)):
            return FRAMES
        return f"output_{axis}" if axis.endswith((HEIGHT, WIDTH)) else ""
    return PATCHES if inputs and all(axis.endswith((HEIGHT, WIDTH)) for axis in inputs) else ""


def elements_per_token(
    module: nn.Module, run: Callable[[dict[str, int]], Any], sizes: dict[str, int], axes: Collection[str]
) -> float:
    """The elements of ``axes`` per token, for estimates of memory; ``run`` calls ``module`` at ``sizes``.

    Tokens are the largest number of vectors in a row of the batch that a linear layer, a normalisation or attention
    reads.
    """
    counts = [1]

    def count(submodule: nn.Module, inputs: tuple[Any, ...]) -> None:
        del submodule
        if inputs and isinstance(inputs[0], Tensor) and inputs[0].dim() > 1:
            counts.append(inputs[0].numel() // max(1, inputs[0].shape[-1] * sizes.get(BATCH, 1)))

    layers = [submodule for submodule in module.modules() if isinstance(submodule, nn.Linear | nn.LayerNorm)]
    hooks = [submodule.register_forward_pre_hook(count) for submodule in layers]
    try:
        with Made() as made:
            run(sizes)
    finally:
        for hook in hooks:
            hook.remove()
    counts.append(made.tokens)
    return math.prod(sizes[axis] for axis in axes) / max(counts) if axes else 1.0
