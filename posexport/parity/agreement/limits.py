"""What a right quantized graph keeps, whatever its weights are, and a broken one does not. Imports no torch.

A gate, not a grade: what a precision costs stands in the manifest, and whether that is too much is the user's decision.
Measured on built-in models with most encodings and a checkpoint of every other family, all with random weights, which
lose far more than trained ones: the least mean cosine of a point was 0.990 in int8 and 0.75 in int4, the largest error
0.45 and 1.2. One activation scale for all rows, in models of one to four layers, gives cosines of 0.62 to 0.93.

A row's float32 sines differ in the last bit with its place in the batch, and a last bit can turn a rounding: no
tolerance of 0 holds for every right graph. So much changes an output by 1e-2 of its scale at the most; an activation
scale that rows share, by 0.13 and more. What was seen stands in the report, 0 where it is bit-identical.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from posexport.bundle.manifest import TextAgreement
from posexport.errors import PosexportError
from posexport.targets.precision_options import PrecisionOptions
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
#: with static scales of activations, which were measured on texts and saturate on the grid's random ids: 1 - cosine of
#: all-MiniLM-L6-v2 is then 0.09 at 128 tokens, and 0.001 to 0.004 at 17 and less. `check_static` asks more on texts.
STATIC = Limits(cosine=0.5, error=2.0, neighbours=2e-2, changes=1e-1)
#: 1 - cosine may be so many times larger at the longest length than at short ones
FALL = 4.0
#: and as large as this anyway
LEAST_FALL = 1e-3


def limits_of(options: PrecisionOptions) -> Limits:
    """Those of a graph that is quantized as ``options`` say."""
    return STATIC if options.static else LIMITS[options.precision]


def check_static(on_texts: TextAgreement, path: Path) -> None:
    """PosexportError where static scales do not even fit texts, as other int8 graphs fit all inputs."""
    for name, output in on_texts.outputs.items():
        if output.cosine < LIMITS["int8"].cosine:
            raise PosexportError(
                f"with static scales the mean cosine of {name} with float32 is {output.cosine:.3f} on {path}, needed "
                f"{LIMITS['int8'].cosine}; give --calibrate more texts, like those that the model will read, or leave "
                "it out: every row of activations then has a scale of its own"
            )
