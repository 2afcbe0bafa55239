"""What a user's module gives where there is nothing to compare with. Imports no torch."""

from collections.abc import Sequence

from posexport.errors import PosexportError
from posexport.parity.criterion import NOT_FINITE, Measured
from posexport.parity.grid.point import GridPoint
from posexport.sources.source import Source


def check_finite(source: Source, point: GridPoint, errors: Sequence[Measured]) -> None:
    """Raise PosexportError where a user's module itself gives NaN or an infinity for a token that is not padding.

    A definition of posexport's own that does is a failure of the proof, not of the input.
    """
    if source.kind != "python":
        return
    for spec, error in zip(source.outputs, errors, strict=True):
        if error.note == NOT_FINITE:
            raise PosexportError(
                f"{source.name}: output {spec.name} of the module itself is NaN or infinite at {point}, for tokens "
                "that are not padding; where all keys of a row can be masked, mask with torch.finfo(x.dtype).min "
                "instead of -inf"
            )
