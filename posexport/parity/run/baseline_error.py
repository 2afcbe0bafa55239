"""PyTorch's baseline error at a length, from more draws where a few points would say little. Imports no torch.

The error of a small output is the largest of few numbers. Over 200 draws of a right model with three labels, PyTorch's
and ONNX Runtime's errors have nearly the same median (0.9e-6) and largest value (2.2e-6, 2.5e-6): seven are luck.
"""

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from posexport.parity.criterion import Array, measure
from posexport.parity.grid.conditioning import numbers
from posexport.parity.grid.inputs import Feeds, draw, token_mask
from posexport.parity.grid.point import GridPoint
from posexport.spec import BATCH, InputSpec, OutputSpec, Padding

#: numbers of an output that make its largest error a matter of course
ENOUGH = 8192
#: at most so many points more, and so many tokens in all of them
MOST, TOKENS = 32, 2048


def more(point: GridPoint, inputs: Sequence[InputSpec], outputs: Sequence[OutputSpec]) -> int:
    """How many points like ``point`` PyTorch is measured on besides the grid's; 0 where the outputs are large."""
    few = min(numbers(point, inputs, spec) for spec in outputs)
    return max(0, min(MOST, ENOUGH // max(1, few) - 1, TOKENS // (point.batch * point.tokens)))


def errors(
    point: GridPoint,
    inputs: Sequence[InputSpec],
    outputs: Sequence[OutputSpec],
    truth: Callable[[Feeds], list[Array]],
    baseline: Callable[[Feeds], list[Array]],
    ragged: Padding | None = "ragged",
) -> list[float]:
    """PyTorch's largest error for each output over `more` draws like ``point``, run as one batch."""
    times = more(point, inputs, outputs)
    found = [0.0] * len(outputs)
    masked = token_mask(point, inputs) is not None
    paddings: list[Padding] = ["none", ragged] if ragged and masked and point.length > 1 else ["none"]
    for padding in paddings if times else []:
        many = msgspec.structs.replace(point, batch=times * point.batch, padding=padding)
        feeds = draw(many, inputs)
        for index, (spec, y, y64) in enumerate(zip(outputs, baseline(feeds), truth(feeds), strict=True)):
            keep = token_mask(many, inputs, spec)
            parts: Array | list[Array] = np.arange(many.batch).reshape(times, point.batch) if BATCH in spec.axes else []
            measured = [
                measure(_take(y, spec, rows), _take(y64, spec, rows), spec.axes, None if keep is None else keep[rows])
                for rows in parts
            ]
            sound = [one for one in measured if np.isfinite(one.error)]
            # a draw whose output is small by luck must not widen the tolerance of the others
            usual = float(np.mean([one.scale for one in sound])) if sound else 0.0
            found[index] = max([found[index], *(one.error * one.scale / max(one.scale, usual) for one in sound)])
    return found


def _take(array: Array, spec: OutputSpec, rows: Array) -> Array:
    return np.take(array, rows, axis=spec.axes.index(BATCH))
