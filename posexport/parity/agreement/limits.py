"""What a right quantized graph keeps, whatever its weights are, and a broken one does not. Imports no torch.

Measured: CALIBRATION
"""

from collections.abc import Mapping
from dataclasses import dataclass

from posexport.targets.precisions import PrecisionName


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The gate of one precision.

    Attributes:
        cosine: the least mean cosine of an output at a point.
        error: the largest error, max |y - y64| / max |y64|.
        neighbours: how much other rows of the batch may change a row, relative to its scale.
        changes: how much padding, and tokens that must not matter, may change the outputs.
    """

    cosine: float
    error: float
    neighbours: float
    changes: float


LIMITS: Mapping[PrecisionName, Limits] = {
    "int8": Limits(cosine=0.95, error=0.9, neighbours=2e-2, changes=5e-2),
    "int4": Limits(cosine=0.5, error=2.0, neighbours=2e-2, changes=1e-1),
    "int4-fp16": Limits(cosine=0.5, error=2.0, neighbours=2e-2, changes=1e-1),
}
#: 1 - cosine may be so many times larger at the longest length than at short ones
FALL = 4.0
#: and as large as this anyway
LEAST_FALL = 1e-3
