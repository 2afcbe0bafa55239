"""All that was checked, and what follows from it in numbers. Imports no torch."""

import sys
from typing import Literal

import msgspec

from posexport.bundle.manifest import BranchRun, ParitySummary
from posexport.parity.criterion import Precision
from posexport.parity.report.points import NAMES, Invariant, MedianRatio, Point


class Proof(msgspec.Struct, frozen=True, kw_only=True, rename=NAMES):
    """Every check of a proof; `posexport.parity.report.report` says what its fields are."""

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
