"""Well-conditioned inputs of a point whose outputs have few elements: not those on which an output is small by chance.

A relative error means little where the scale is the magnitude of one or two elements that happen to be near zero: two
right programs then differ by many times 16 eps, and neither is to blame: of 24 right models with one element a token
or a sentence 11 failed without this choice. Wide outputs are never small as a whole. Imports no torch.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from posexport.parity.criterion import Array, rows
from posexport.parity.grid.inputs import Feeds, draw, token_mask
from posexport.parity.grid.point import GridPoint
from posexport.spec import ENCODER_SEQUENCE, TOKENS, InputSpec, Interface, OutputSpec

#: an output of fewer elements than this has its inputs chosen
FEW = 8
#: among how many draws: at least, at most, and tokens of all draws together
DRAWS = (4, 32, 256)


def inputs_of(point: GridPoint, model: Interface, definition: Callable[[Feeds], list[Array]]) -> Feeds:
    """The point's inputs; where one of its outputs has few elements, the draw on which its outputs are largest.

    ``definition`` runs the model by PyTorch. What is large is judged for each output against its mean over the draws,
    and the output that fares worst decides.
    """
    inputs, outputs = model.inputs, model.outputs
    if not any(elements(point, inputs, spec) < FEW for spec in outputs):
        return draw(point, inputs)
    least, most, tokens = DRAWS
    draws = min(most, max(least, tokens // (point.batch * point.tokens)))
    drawn = [draw(point, inputs, variant) for variant in range(draws)]
    keeps = [token_mask(point, inputs, spec) for spec in outputs]
    scales = np.zeros((draws, len(outputs)))
    for variant, feeds in enumerate(drawn):
        for index, (spec, y, keep_BT) in enumerate(zip(outputs, definition(feeds), keeps, strict=True)):
            kept = (row if keep is None else row[keep] for row, _, keep in rows(y, y, spec.axes, keep_BT))
            scales[variant, index] = max(float(np.abs(row).max(initial=0.0)) for row in kept)
    means = scales.mean(0)
    fares = np.where(means > 0, scales / np.where(means > 0, means, 1.0), 1.0).min(1)
    return drawn[int(np.argmax(fares))]


def elements(point: GridPoint, inputs: Sequence[InputSpec], spec: OutputSpec) -> int:
    """How many elements of the output are compared."""
    width = math.prod(axis for axis in spec.axes if isinstance(axis, int))
    if not set(TOKENS) & set(spec.axes):
        return point.batch * width
    keep_BT = token_mask(point, inputs, spec)
    tokens = point.encoder_length or 1 if ENCODER_SEQUENCE in spec.axes else point.tokens
    return width * (point.batch * tokens if keep_BT is None else int(keep_BT.sum()))
