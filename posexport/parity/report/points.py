"""What was checked, one record a check. Imports no torch.

An ``error`` of None is one that no number describes (a missing output, a shape, NaN); its note says what it was.
"""

from typing import Any, Literal

import msgspec

from posexport.parity.grid.point import GridPoint
from posexport.spec import Padding
from posexport.targets.precisions import PrecisionName

Outcome = Literal["pass", "fail", "skipped", "rejected"]
#: how a sequence was read; None: either way
Calls = Literal["one", "several"] | None
#: the fields that a point has from the grid
_OF_GRID: tuple[str, ...] = (
    "batch",
    "length",
    "padding",
    "encoder_length",
    "image",
    "sizes",
    "length_estimated",
    "calls",
)
_OF_GRID += ("position_ids_given",)


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One output at one point.

    Attributes:
        batch: rows.
        length: tokens of a row, cached ones included.
        encoder_length: tokens of the encoder, for cross attention.
        image: height and width in pixels.
        sizes: of axes of a user's module that are neither batch nor sequence, by their names.
        length_estimated: no axis is a sequence, and ``length`` is about how many tokens ``sizes`` make.
        calls: new tokens of each call, where the row was read in several (prefill, chunks, decode steps).
        position_ids_given: ``position_ids`` were fed, instead of counted from the mask.
        padding: where rows were padded.
        provider: where the graph ran.
        precision: precision of the run.
        output: name of the compared output.
        error: max |y - y64| / max |y64| over what is not padding; None: no number describes it, see the note.
        baseline_error: PyTorch's own error at this point, in the same precision.
        worst_baseline_error: PyTorch's largest error at this length, of which the tolerance is made.
        tolerance: the largest error that passes.
        verdict: pass, fail, skipped, or rejected by the graph's length guard (which passes where it is due).
        note: reason, where there is one.
    """

    batch: int
    length: int
    encoder_length: int | None = None
    image: tuple[int, int] | None = None
    sizes: tuple[tuple[str, int], ...] = ()
    length_estimated: bool = False
    calls: tuple[int, ...] = ()
    position_ids_given: bool = False
    padding: Padding
    provider: str
    precision: PrecisionName
    output: str
    error: float | None
    baseline_error: float | None
    worst_baseline_error: float | None
    tolerance: float | None
    verdict: Outcome
    note: str = ""

    @staticmethod
    def at(point: GridPoint, **result: Any) -> "Point":
        """What came out at a point of the grid; measures that are not given are None."""
        fields: dict[str, Any] = dict.fromkeys(("error", "baseline_error", "worst_baseline_error", "tolerance"))
        fields |= {name: getattr(point, name) for name in _OF_GRID}
        return Point(**{"output": "", **fields, **result})

    @property
    def where(self) -> str:
        """The point in words."""
        return str(self.point)

    @property
    def point(self) -> GridPoint:
        """The point of the grid, without how samples become tokens."""
        return GridPoint(**{name: getattr(self, name) for name in _OF_GRID})

    @property
    def ratio(self) -> float:
        """Error in units of the tolerance."""
        if self.tolerance is None:
            return 0.0
        return float("inf") if self.error is None else self.error / self.tolerance


class MedianRatio(msgspec.Struct, frozen=True, kw_only=True):
    """The median error of an output over a group of points, relative to PyTorch's (`posexport.parity.report.median`).

    ``output``: its name, or ``present.*`` for all cache tensors. The group has all points between the lengths
    ``shortest`` and ``longest``; ``calls`` is None where the group holds sequences in one call and in several.
    """

    output: str
    shortest: int
    longest: int
    calls: Calls = None
    points: int
    ratio: float
    limit: float
    verdict: Outcome

    @property
    def where(self) -> str:
        """The group in words."""
        lengths = f"length {self.shortest}" if self.shortest == self.longest else f"{self.shortest} to {self.longest}"
        calls = {"one": ", in one call", "several": ", in several calls"}.get(self.calls or "", "")
        return f"{self.points} points ({lengths}{calls})"

    def describe(self) -> str:
        """The median against its limit, in a sentence."""
        held = f"{self.limit:.3g} is allowed"
        return f"the median error of {self.output} over {self.where} is {self.ratio:.2g} times PyTorch's: {held}"


class Invariant(msgspec.Struct, frozen=True, kw_only=True):
    """One property checked between two runs of the model.

    ``baseline_change``: between PyTorch's outputs for the same inputs.
    """

    name: str
    length: int
    output: str
    error: float | None
    baseline_change: float | None = None
    tolerance: float | None
    verdict: Outcome
    note: str = ""
