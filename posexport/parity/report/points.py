"""What was checked, one record a check. Imports no torch.

An ``error`` of None is one that no number describes (a missing output, a shape, NaN); its note says what it was.
"""

from typing import Any, Literal

import msgspec

from posexport.parity.grid.point import POINT_NAMES, GridPoint
from posexport.spec import Padding
from posexport.targets.precisions import PrecisionName

Outcome = Literal["pass", "fail", "skipped", "rejected"]
#: how a sequence was read; None: either way
Calls = Literal["one", "several"] | None
#: what JSON calls fields of the report; `posexport.parity.grid.point` has those of a point
NAMES = {
    **POINT_NAMES,
    "torch_error": "baseline_error",
    "torch_worst": "worst_baseline_error",
    "torch_change": "baseline_change",
    "strays": "wrong_provider",
    "located": "failure_location",
    "float32": "float32_proof",
}

#: the fields that a point has from the grid
_OF_GRID = ("batch", "length", "padding", "memory", "image", "calls", "numbered")


class Point(msgspec.Struct, frozen=True, kw_only=True, rename=NAMES):
    """One output at one point.

    Attributes:
        batch: rows.
        length: tokens of a row, cached ones included.
        past: tokens in the cache before the call.
        encoder_length (int | None): tokens of the encoder, for cross attention.
        image: height and width in pixels.
        calls: new tokens of each call, where the row was read in several (prefill, chunks, decode steps).
        position_ids_given (bool): ``position_ids`` were fed, instead of counted from the mask.
        padding: where rows were padded.
        provider: where the graph ran.
        precision: precision of the run.
        output: name of the compared output.
        error: max |y - y64| / max |y64| over what is not padding; None: no number describes it, see the note.
        baseline_error (float | None): PyTorch's own error at this point, in the same precision.
        worst_baseline_error (float | None): PyTorch's largest error at this length, of which the tolerance is made.
        tolerance: the largest error that passes.
        cosine: of a quantized graph: mean cosine of a token's vector with the reference's.
        least_cosine: the smallest of them.
        top_1: the part of the tokens whose largest logit is the reference's; None for what is no logits.
        verdict: pass, fail, skipped, or rejected by the graph's length guard (which passes where it is due).
        note: reason, where there is one.
    """

    batch: int
    length: int
    past: int = 0
    memory: int | None = None
    image: tuple[int, int] | None = None
    calls: tuple[int, ...] = ()
    numbered: bool = False
    padding: Padding
    provider: str
    precision: PrecisionName
    output: str
    error: float | None
    torch_error: float | None
    torch_worst: float | None
    tolerance: float | None
    cosine: float | None = None
    least_cosine: float | None = None
    top_1: float | None = None
    verdict: Outcome
    note: str = ""

    @staticmethod
    def at(point: GridPoint, **result: Any) -> "Point":
        """What came out at a point of the grid; measures that are not given are None."""
        fields: dict[str, Any] = dict.fromkeys(("error", "torch_error", "torch_worst", "tolerance"))
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


class Invariant(msgspec.Struct, frozen=True, kw_only=True, rename=NAMES):
    """One property checked between two runs of the model; ``torch_change`` is between PyTorch's for the same inputs."""

    name: str
    length: int
    output: str
    error: float | None
    torch_change: float | None = None
    tolerance: float | None
    verdict: Outcome
    note: str = ""
