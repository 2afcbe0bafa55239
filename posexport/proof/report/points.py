"""The records of a report, one for each check. Imports no torch.

An ``error`` of None is one that no number describes (a missing output, a shape, NaN); its note says what it was.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec

from posexport.base.spec import Padding
from posexport.base.targets.precisions import PrecisionName
from posexport.proof.grid.point import GridPoint

#: of float16
LARGEST = 65504.0
#: how the note of a point begins at which the graph gave no outputs
NOT_RUN = "ONNX Runtime failed: "


class LayerRange(msgspec.Struct, frozen=True, kw_only=True):
    """The largest magnitude that a layer computed before it was rounded, and the node that did.

    ``layer``: a module's path or what nodes' names say; empty where they say nothing.
    """

    layer: str
    largest: float
    node: str
    op_type: str


class Overflow(msgspec.Struct, frozen=True, kw_only=True):
    """A node with a result beyond float16 and inputs within. ``value``: None if it is NaN."""

    layer: str
    node: str
    op_type: str
    value: float | None

    def describe(self) -> str:
        """Returns the overflow as a sentence."""
        value = "a result that is infinite or no number" if self.value is None else f"{self.value:.3g}"
        return f"{where(self)} gives {value}, beyond float16's largest number {LARGEST:.0f}; use fp32 or bf16"


def where(site: "LayerRange | Overflow") -> str:
    """The node, and its layer where that is known."""
    return f"{site.op_type} {site.node}" + (f" (in {site.layer})" if site.layer else "")


def nearest(layers: Sequence[LayerRange]) -> LayerRange | None:
    """The layer with the largest magnitude."""
    return max(layers, key=lambda layer: layer.largest, default=None)


def lines(layers: Sequence[LayerRange], overflows: Sequence[Overflow]) -> Iterator[str]:
    """Returns the remarks of a report."""
    for overflow in overflows[:_NAMED]:
        yield f"FAIL: overflow: {overflow.describe()}"
    if len(overflows) > _NAMED:
        yield f"FAIL: and {len(overflows) - _NAMED} more nodes overflow"
    if (most := nearest(layers)) is not None and not overflows:
        share = most.largest / LARGEST
        yield f"ok: values come to {most.largest:.3g}, {share:.2g} of float16's range, at {where(most)}"


#: overflows that remarks name
_NAMED = 3


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
    "cached",
    "position_ids_given",
)


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
        cached: tokens at the start with drawn keys and values: the call reads those after them.
        position_ids_given: ``position_ids`` were fed, instead of counted from the mask.
        padding: where rows were padded.
        provider: where the graph ran.
        precision: precision of the run.
        output: name of the compared output.
        error: max |y - y64| / max |y64| over elements that are not padding; None: see the note.
        baseline_error: PyTorch's error at this point, in the same precision.
        worst_baseline_error: PyTorch's largest error at this length, which sets the tolerance.
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
    cached: int = 0
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
        """The result at a point of the grid; measures that are left out are None."""
        fields: dict[str, Any] = dict.fromkeys(("error", "baseline_error", "worst_baseline_error", "tolerance"))
        fields |= {name: getattr(point, name) for name in _OF_GRID}
        return Point(**{"output": "", **fields, **result})

    @property
    def where(self) -> str:
        """Returns the point in words."""
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
    """The median error of an output over a group of points, relative to PyTorch's (`posexport.proof.report.record`).

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
        """Returns the group in words."""
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
