"""What was checked and how it went: ``parity.json``. Imports no torch.

An ``error`` of None is one that no number describes (a missing output, a shape, NaN); its note says what it was.
"""

import sys
from typing import Literal

import msgspec

from posexport.bundle.manifest import BranchRun, ParitySummary
from posexport.errors import PosexportError
from posexport.parity.grid import POINT_NAMES, GridPoint
from posexport.spec import Padding
from posexport.targets.dtypes import Precision

Verdict = Literal["pass", "fail", "skipped", "rejected"]
#: how a sequence was read; None: either way
Calls = Literal["one", "several"] | None
#: what JSON calls fields of the report; `posexport.parity.grid` has those of a point
_NAMES = {
    **POINT_NAMES,
    "torch_error": "baseline_error",
    "torch_worst": "worst_baseline_error",
    "torch_change": "baseline_change",
    "strays": "wrong_provider",
    "located": "failure_location",
}


class Point(msgspec.Struct, frozen=True, kw_only=True, rename=_NAMES):
    """One output at one point. ``rejected``: the length guard rejected the input, as it must."""

    batch: int
    length: int
    past: int = 0
    #: length of the sequence that is cross attended to
    memory: int | None = None
    #: height and width of an image
    image: tuple[int, int] | None = None
    #: lengths of the calls that made up the length
    calls: tuple[int, ...] = ()
    #: positions were given
    numbered: bool = False
    padding: Padding
    provider: str
    precision: Precision
    output: str
    error: float | None
    #: PyTorch's at this point, and its largest at this length, which the tolerance is made of
    torch_error: float | None
    torch_worst: float | None
    tolerance: float | None
    verdict: Verdict
    note: str = ""

    @staticmethod
    def at(
        point: GridPoint,
        *,
        provider: str,
        precision: Precision,
        output: str,
        verdict: Verdict,
        error: float | None = None,
        torch_error: float | None = None,
        torch_worst: float | None = None,
        tolerance: float | None = None,
        note: str = "",
    ) -> "Point":
        """What came out at a point of the grid."""
        return Point(
            batch=point.batch,
            length=point.length,
            memory=point.memory,
            image=point.image,
            calls=point.calls,
            numbered=point.numbered,
            padding=point.padding,
            provider=provider,
            precision=precision,
            output=output,
            error=error,
            torch_error=torch_error,
            torch_worst=torch_worst,
            tolerance=tolerance,
            verdict=verdict,
            note=note,
        )

    @property
    def where(self) -> str:
        """The point in words."""
        return str(self.point)

    @property
    def point(self) -> GridPoint:
        """The point of the grid, without how samples become tokens."""
        return GridPoint(
            batch=self.batch,
            length=self.length,
            padding=self.padding,
            memory=self.memory,
            image=self.image,
            calls=self.calls,
            numbered=self.numbered,
        )

    @property
    def ratio(self) -> float:
        """Error in units of the tolerance."""
        if self.tolerance is None:
            return 0.0
        return float("inf") if self.error is None else self.error / self.tolerance


class MedianRatio(msgspec.Struct, frozen=True, kw_only=True):
    """The median, over a group of points, of an output's error relative to PyTorch's (`posexport.parity.median`).

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
    verdict: Verdict

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


class Invariant(msgspec.Struct, frozen=True, kw_only=True, rename=_NAMES):
    """One property checked between two runs of the model; ``torch_change`` is between PyTorch's for the same inputs."""

    name: str
    length: int
    output: str
    error: float | None
    torch_change: float | None = None
    tolerance: float | None
    verdict: Verdict
    note: str = ""


class Report(msgspec.Struct, frozen=True, kw_only=True, rename=_NAMES):
    """A whole proof. ``scope`` is ``sample`` where only a bundle's stored sample was looked at.

    ``strays``: findings about the provider (a node that fell to another one). ``stateful``: the definition keeps state,
    so every point got a fresh copy. ``lengths``: those that were checked in place of the grid's. ``located``: where the
    first failure starts, in words. ``tolerance``: the user's, in place of the criterion.
    """

    scope: Literal["grid", "sample"]
    provider: str
    precision: Precision
    points: list[Point]
    #: empty where no group has enough points
    medians: list[MedianRatio] = []
    invariants: list[Invariant] = []
    strays: list[str] = []
    stateful: bool = False
    lengths: list[int] = []
    tolerance: float | None = None
    located: str | None = None
    #: every branch of the graph; empty where the graph has none, or where only chosen lengths were checked
    coverage: list[BranchRun] = []
    #: of another tool's graph: answers where a refusal was due, and what was shown where there are none
    findings: list[str] = []
    conclusion: str | None = None

    @property
    def passed(self) -> bool:
        """Nothing failed, and something was checked."""
        verdicts = {point.verdict for point in self.points} | {item.verdict for item in self.invariants}
        verdicts |= {item.verdict for item in self.medians}
        checked = any(point.verdict == "pass" for point in self.points)
        return checked and not self.strays and "fail" not in verdicts

    @property
    def unreached(self) -> list[BranchRun]:
        """The branches that no checked point ran, which are not proven."""
        return [branch for branch in self.coverage if branch.reached is None]

    @property
    def worst(self) -> Point | None:
        """The point that came nearest to its tolerance, or exceeded it most; None where no value was compared."""
        return max((p for p in self.points if p.tolerance is not None), key=lambda p: p.ratio, default=None)

    @property
    def verdict(self) -> str:
        """The verdict in words: ``proven``, or what is less than that and why."""
        from posexport.parity.verdict import verdict

        return verdict(self).words

    def to_text(self) -> str:
        """The table of lengths and paddings, and what failed."""
        from posexport.parity.point_table import plain

        return plain(self)

    def summary(self) -> ParitySummary:
        """Counts for the manifest; an error that no number describes counts as the largest float."""
        verdicts = [point.verdict for point in self.points]
        worst = self.worst
        error = 0.0 if worst is None else sys.float_info.max if worst.error is None else worst.error
        return ParitySummary(
            points=len(verdicts),
            passed=verdicts.count("pass"),
            skipped=verdicts.count("skipped"),
            refused=verdicts.count("rejected"),
            worst_error=error,
            worst_tolerance=worst.tolerance or 0.0 if worst else 0.0,
            complete=self.scope == "grid" and not self.lengths and "skipped" not in verdicts,
            longest=max((p.length for p in self.points if p.verdict == "pass"), default=None),
        )

    def describe(self) -> str:
        """The first failure in a sentence or two; the counts where there is none."""
        failed = [point for point in self.points if point.verdict == "fail"]
        if self.findings and all(point.tolerance is None and not point.output for point in failed):
            return self.findings[0]
        if failed:
            sizes = {p.length: p.point.size for p in self.points}
            right = sorted({p.length for p in self.points if p.verdict == "pass"} - {p.length for p in failed})
            before = [sizes[n] for n in right if n < failed[0].length]
            shorter = f" (right at length {_listed(before)})" if before else ""
            where = f" {self.located}" if self.located else ""
            return f"{_point_failure(failed[0])}{shorter}; {_count(len(failed), 'failure')} in all.{where}"
        for stray in self.strays:
            return stray
        missed = [item for item in self.medians if item.verdict == "fail"]
        if missed:
            worst = max(missed, key=lambda item: item.ratio)
            return f"{worst.describe()}; no single point exceeds its own tolerance, all together are less exact"
        for invariant in self.invariants:
            if invariant.verdict == "fail":
                return f"invariant at length {invariant.length}: {invariant.name}: {invariant.note}"
        if not self.passed:
            return "no point was checked"
        return self._success()

    def _success(self) -> str:
        counts = self.summary()
        parts = [f"{_count(counts.passed, 'comparison')} passed"]
        medians = max((item.ratio for item in self.medians), default=None)
        parts += [] if medians is None else [f"median error at most {medians:.2g} times PyTorch's"]
        parts += [f"{_count(counts.refused, 'input')} outside the limits rejected"] if counts.refused else []
        parts += [f"{counts.skipped} skipped"] if counts.skipped else []
        held = sum(item.verdict == "pass" for item in self.invariants)
        parts += [f"{_count(held, 'invariant')} ok"] if held else []
        ran = len(self.coverage) - len(self.unreached)
        parts += (
            [f"{ran} of {_count(len(self.coverage), 'branch', 'branches')} of the graph ran"] if self.coverage else []
        )
        sample = "; this is the sample stored in the bundle, the whole grid needs --against SOURCE"
        shown = "" if self.conclusion is None else f"{self.conclusion}; "
        return shown + ", ".join(parts) + (sample if self.scope == "sample" else "")

    def to_json(self) -> bytes:
        """The report as JSON that people can read, its verdict first, ending in a newline."""
        document = {"verdict": self.verdict, "passed": self.passed, **msgspec.to_builtins(self)}
        return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"

    @staticmethod
    def from_json(data: bytes) -> "Report":
        """The report in ``data``; PosexportError says what is wrong with it."""
        try:
            return msgspec.json.decode(data, type=Report)  # what follows from the rest is not read
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as err:
            raise PosexportError(f"this is not a parity report: {err}") from err


def _point_failure(point: Point) -> str:
    if point.error is None or point.tolerance is None:
        output = f"{point.output} at " if point.output else ""
        return f"{output}{point.where}: {point.note}"
    own = f", PyTorch's float32 baseline error is {point.torch_worst:.1e}" if point.torch_worst is not None else ""
    note = f" ({point.note})" if point.note else ""
    return f"{point.output} at {point.where}: error {point.error:.1e} exceeds {point.tolerance:.1e}{own}{note}"


def _count(number: int, noun: str, nouns: str = "") -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {nouns or f'{noun}s'}"


def _listed(sizes: list[str]) -> str:
    return ", ".join(sizes[:5]) + (" ..." if len(sizes) > 5 else "")
