"""A proof as a value: subject, reference, judge, points and checks. Imports no torch.

A new kind of graph is a new subject, a new truth a new reference, a new rule a new judge, and whatever else must hold
is a check; each is a file, and `posexport.proof.choose` puts them together.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from posexport.base.spec import Interface
from posexport.base.targets.precisions import PrecisionName
from posexport.proof.criterion import Array, Measured
from posexport.proof.grid.inputs import Feeds
from posexport.proof.grid.point import Budget, GridPoint
from posexport.proof.judges import Answer
from posexport.proof.report.points import MedianRatio, Point
from posexport.proof.report.report import Report

Run = Callable[[Feeds], list[Array]]
#: steps done, their total, the current one
Progress = Callable[[int, int, str], None]
#: by length and output
PerLength = Mapping[tuple[int, str], float]


class Subject(Protocol):
    """The subject of a proof: a bundle's graph or graphs, another tool's, or an emulated copy."""

    def __call__(self, feeds: Feeds) -> list[Array]:
        """The outputs in the order of the proof's model; RunError with ONNX Runtime's message."""
        ...


class Truth(Protocol):
    """The right value of one output at one point."""

    @property
    def output(self) -> str:
        """The name of the output that is compared."""
        ...

    @property
    def baseline(self) -> Measured:
        """PyTorch's error there, in the precision of the graph; NaN if unknown."""
        ...

    def measure(self, y: Array) -> Measured:
        """The error of ``y``, shaped as the output."""
        ...


class Case(NamedTuple):
    """A point's inputs, and the right value of each output in turn."""

    feeds: Feeds
    truths: Sequence[Truth]


class Reference(Protocol):
    """The source of right values: the definition run by PyTorch, or the sample in a bundle."""

    def start(self, points: Sequence[GridPoint], skipped: Mapping[GridPoint, str]) -> None:
        """Before the first case: ``points`` are those that come, ``skipped`` those without the memory, and why."""
        ...

    def case(self, point: GridPoint) -> Case:
        """Returns the right values at a point."""
        ...

    def largest(self, values: "Sequence[Value]", progress: Progress, *, thorough: bool = False) -> PerLength:
        """PyTorch's largest error for every output at every length of ``values``, which tolerances follow from.

        ``progress``: is called where more inputs are drawn for it. ``thorough``: many, because something failed.
        """
        ...

    def changed(self) -> bool:
        """Whether it gives other numbers now than at the start, because the definition keeps state."""
        ...

    def renew(self) -> None:
        """Uses a new copy of the definition for every call from now on."""
        ...


class Judge(Protocol):
    """Decides whether errors are within tolerance."""

    @property
    def precision(self) -> PrecisionName:
        """What the graph computes in."""
        ...

    def tolerance(self, length: int, output: str, baseline: float) -> float:
        """The largest error that passes, for PyTorch's error ``baseline``."""
        ...

    def medians(self, points: Sequence[Point]) -> list[MedianRatio]:
        """Of the errors of all points; none where only single points are judged."""
        ...


class Rejection(Protocol):
    """What decides on inputs that the model has no positions for."""

    def judge(self, subject: Subject, point: GridPoint) -> Answer:
        """Whether what ``subject`` does with the inputs of ``point`` is good."""
        ...


@dataclass(frozen=True)
class Value:
    """One output at one point, before the verdict.

    ``baseline``: PyTorch's error there. ``measured``: None where the subject raised, as ``note`` says.
    """

    point: GridPoint
    output: str
    baseline: float
    measured: Measured | None
    note: str = ""


@dataclass(frozen=True)
class Outcome:
    """What came out at all points.

    Attributes:
        largest: PyTorch's largest error at a length.
        tolerances: what follows from it.
        skipped: the points for which there was no memory, with the reason.
        stateful: the definition gives other outputs when it is called again.
    """

    values: list[Value]
    largest: PerLength
    tolerances: PerLength
    skipped: dict[GridPoint, str]
    stateful: bool


class Check(Protocol):
    """Something that must hold beyond single values; adds its results to the report."""

    def __call__(self, proof: "Proof", outcome: Outcome, report: Report) -> Report:
        """Returns ``report`` with the results."""
        ...


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What `posexport.proof.engine.prove` runs.

    Attributes:
        model: its inputs and outputs are compared.
        points: where; those that must be rejected are judged by ``rejection``.
        checks: in the order in which they run.
        about: what the report says before anything has run: provider, precision, chosen lengths.
        budget: the memory that a point may take.
        release: gives memory of the subject back, before the reference computes.
    """

    model: Interface
    subject: Subject
    reference: Reference
    judge: Judge
    rejection: Rejection
    points: Sequence[GridPoint]
    about: Report
    budget: Budget
    checks: Sequence[Check] = ()
    progress: Progress = field(default=lambda *_: None)
    release: Callable[[], None] = field(default=lambda: None)

    def at(self, point: GridPoint, **result: Any) -> Point:
        """Returns the record of a point with its result."""
        return Point.at(point, provider=self.about.provider, precision=self.about.precision, **result)
