"""PyTorch's baseline error at a length, from more draws where a few points would say little. Imports no torch.

The error of a small output is the largest of few elements. Over 200 draws of a right model with three labels, PyTorch's
and ONNX Runtime's errors have nearly the same median (0.9e-6) and largest value (2.2e-6, 2.5e-6): seven are chance.
"""

from collections.abc import Callable

import msgspec
import numpy as np

from posexport.parity.criterion import Array, measure
from posexport.parity.grid.conditioning import elements
from posexport.parity.grid.inputs import Feeds, draw, token_mask
from posexport.parity.grid.point import GridPoint
from posexport.spec import BATCH, Interface, OutputSpec, Padding

#: elements of an output that make its largest error a matter of course
ENOUGH = 8192
#: at most so many points more, and so many tokens in all of them
MOST, TOKENS = 32, 2048


def more(point: GridPoint, model: Interface) -> int:
    """How many points like ``point`` PyTorch is measured on besides the grid's; 0 where the outputs are large."""
    few = min(elements(point, model.inputs, spec) for spec in model.outputs)
    return max(0, min(MOST, ENOUGH // max(1, few) - 1, TOKENS // (point.batch * point.tokens)))


def errors(
    point: GridPoint,
    model: Interface,
    truth: Callable[[Feeds], list[Array]],
    baseline: Callable[[Feeds], list[Array]],
    ragged: Padding | None = "ragged",
) -> list[float]:
    """PyTorch's largest error for each output over `more` draws like ``point``, run as one batch."""
    inputs, outputs, times = model.inputs, model.outputs, more(point, model)
    largest = [0.0] * len(outputs)
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
            sound = [error for error in measured if np.isfinite(error.error)]
            # a draw whose output is small by chance must not widen the tolerance of the others
            usual = float(np.mean([error.scale for error in sound])) if sound else 0.0
            largest[index] = max(
                [largest[index], *(error.error * error.scale / max(error.scale, usual) for error in sound)]
            )
    return largest


def _take(array: Array, spec: OutputSpec, rows: Array) -> Array:
    return np.take(array, rows, axis=spec.axes.index(BATCH))
