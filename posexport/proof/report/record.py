"""All results of a proof and the verdict that follows from them: the one place that decides. Imports no torch.

The verdict includes the median error in units of PyTorch's. The tolerance of one point is wide, because at one point
the order of summation decides. A systematic loss (a table in half precision, an approximated function) raises the
errors of most points, so it shows in their median.
"""

import sys
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np

from posexport.base.targets.precisions import PrecisionName
from posexport.proof.report.points import Calls, Invariant, LayerRange, MedianRatio, Overflow, Point
from posexport.run.bundle.manifest import BranchRun, OutputAgreement, ParitySummary, ReducedProof

#: the name for all cache tensors together
CACHE = "present.*"


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Every check of a proof; `posexport.proof.report.report` says what its fields are."""

    scope: Literal["grid", "sample"]
    provider: str
    precision: PrecisionName
    points: list[Point]
    #: empty where no group has enough points
    medians: list[MedianRatio] = []
    invariants: list[Invariant] = []
    wrong_provider: list[str] = []
    stateful: bool = False
    lengths: list[int] = []
    tolerance: float | None = None
    failure_location: str | None = None
    #: every branch of the graph; empty where the graph has none, or where only chosen lengths were checked
    coverage: list[BranchRun] = []
    #: of another tool's graph: outputs where a rejection was due, and observations
    findings: list[str] = []
    conclusion: str | None = None
    #: a copy of the graph was proven that computes in float32 and rounds (`posexport.graph.precision.emulate`)
    emulated: bool = False
    #: of an emulated proof: the graph itself on the provider, in float32 where that has no half kernels, at some points
    shipped: list[Point] = []
    #: of a quantized graph: what its precision costs, by output, at some points with random inputs
    agreement: dict[str, OutputAgreement] = {}
    #: of a graph that computes in float16: the largest magnitudes, by layer, and the nodes that exceed its range
    range: list[LayerRange] = []
    overflows: list[Overflow] = []
    #: lengths are tokens, not samples of sound or parts of images
    counts_tokens: bool = False
    #: of a large model: the grid ran on a reduced model, and these are points of the full one
    reduced: ReducedProof | None = None
    calls: list[Point] = []

    @property
    def passed(self) -> bool:
        """Nothing failed, and something was checked."""
        verdicts = {point.verdict for point in self.points} | {item.verdict for item in self.invariants}
        verdicts |= {item.verdict for item in self.medians} | {item.verdict for item in (*self.shipped, *self.calls)}
        checked = any(point.verdict == "pass" for point in self.points)
        wrong = self.wrong_provider or self.overflows or (self.reduced is not None and self.findings)
        return checked and not wrong and "fail" not in verdicts

    @property
    def unreached(self) -> list[BranchRun]:
        """The branches that no checked point ran, which are not proven."""
        return [branch for branch in self.coverage if branch.covered_by is None]

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
            rejected=verdicts.count("rejected"),
            worst_error=error,
            worst_tolerance=worst.tolerance or 0.0 if worst else 0.0,
            complete=self.scope == "grid" and not self.lengths and "skipped" not in verdicts,
            longest_passed=max((p.length for p in self.points if p.verdict == "pass"), default=None),
            reduced=self.reduced,
        )

    def describe(self) -> str:
        """The first failure in a sentence or two; the counts where there is none."""
        failed = [point for point in (*self.points, *self.shipped, *self.calls) if point.verdict == "fail"]
        if self.findings and self.reduced is not None:
            return self.findings[0]
        if self.findings and all(point.tolerance is None and not point.output for point in failed):
            return self.findings[0]
        if failed:
            sizes = {p.length: p.point.size for p in self.points}
            right = sorted({p.length for p in self.points if p.verdict == "pass"} - {p.length for p in failed})
            before = [sizes[n] for n in right if n < failed[0].length]
            shorter = f" (right at length {_listed(before)})" if before else ""
            where = f" {self.failure_location}" if self.failure_location else ""
            return f"{_point_failure(failed[0])}{shorter}; {_count(len(failed), 'failure')} in all.{where}"
        for stray in self.wrong_provider:
            return stray
        for overflow in self.overflows:
            return overflow.describe()
        missed = [item for item in self.medians if item.verdict == "fail"]
        if missed:
            worst = max(missed, key=lambda item: item.ratio)
            return f"{worst.describe()}; no single point exceeds its own tolerance, all together are less exact"
        for invariant in self.invariants:
            if invariant.verdict == "fail":
                return f"invariant at length {invariant.length}: {invariant.name}: {invariant.note}"
        if not self.passed:
            return f"no point was checked{''.join(f': {point.note}' for point in self.points[:1] if point.note)}"
        return self._success()

    def _success(self) -> str:
        counts = self.summary()
        parts = [f"{_count(counts.passed, 'comparison')} passed"]
        if self.reduced is not None:
            parts[0] += f" on {self.reduced.kept} of {self.reduced.layers} layers"
            calls = len({point.point for point in self.calls if point.verdict == "pass"})
            parts.append(f"the file by structure, {_count(self.reduced.weights, 'weight')} and {_count(calls, 'call')}")
        parts += [f"mean cosine of {output} {agreement.cosine:.4f}" for output, agreement in self.agreement.items()]
        medians = max((item.ratio for item in self.medians), default=None)
        parts += [] if medians is None else [f"median error at most {medians:.2g} times PyTorch's"]
        parts += [f"{_count(counts.rejected, 'input')} outside the limits rejected"] if counts.rejected else []
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


def _point_failure(point: Point) -> str:
    if point.error is None or point.tolerance is None:
        output = f"{point.output} at " if point.output else ""
        return f"{output}{point.where}: {point.note}"
    baseline = (
        f", PyTorch's {point.precision} baseline error is {point.worst_baseline_error:.1e}"
        if point.worst_baseline_error is not None
        else ""
    )
    note = f" ({point.note})" if point.note else ""
    return f"{point.output} at {point.where}: error {point.error:.1e} exceeds {point.tolerance:.1e}{baseline}{note}"


def _count(number: int, noun: str, nouns: str = "") -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {nouns or f'{noun}s'}"


def _listed(sizes: list[str]) -> str:
    return ", ".join(sizes[:5]) + (" ..." if len(sizes) > 5 else "")


@dataclass(frozen=True)
class Verdict:
    """``words``: the verdict as the last line of ``posexport convert`` says it."""

    proven: bool
    words: str


def verdict(proof: Record | None) -> Verdict:
    """Proven is what passed on the whole grid.

    No lengths of the user's choice, no point skipped, and no branch of the graph that did not run.
    ``proof``: None where nothing was checked.
    """
    if proof is None:
        return Verdict(False, "NOT proven: nothing was checked")
    if not proof.passed:
        return Verdict(False, "NOT proven: parity was missed")
    if proof.tolerance is not None:
        return Verdict(False, f"within {proof.tolerance:g}")
    if proof.scope == "sample":
        return Verdict(False, "checked on the stored sample")
    if proof.lengths:
        noun = "token" if proof.lengths == [1] else "tokens"
        return Verdict(False, f"checked at {', '.join(map(str, proof.lengths))} {noun}, not proven")
    skipped = [point for point in proof.points if point.verdict == "skipped"]
    if skipped:
        shortest = min(skipped, key=lambda point: (point.length, point.batch))
        count = f"{len(skipped)} point{'s' if len(skipped) > 1 else ''}"
        return Verdict(False, f"proven except {count}, the first {shortest.where}: {shortest.note}")
    if proof.unreached:
        first, *remaining = proof.unreached
        more = f", and {len(remaining)} more branches" if remaining else ""
        return Verdict(False, f"proven except {first.branch} ({first.note}){more}")
    longest = proof.summary().longest_passed if proof.counts_tokens else None
    words = "proven in emulation" if proof.emulated else "proven"
    words += "" if longest is None else f" up to {_count(longest, 'token')}"
    if proof.reduced is not None:
        words += f", the grid on {proof.reduced.kept} of {proof.reduced.layers} layers"
    return Verdict(True, words)


#: the largest median of error / PyTorch's baseline error
LIMIT = 2.0
#: fewer points than this have no median worth judging; one row in each padding, a ragged batch and another length have
LEAST_POINTS = 5
#: the least value of PyTorch's error, in eps
LEAST_EPS = 2


def check_medians(points: Sequence[Point], switches: Sequence[int], eps: float) -> list[MedianRatio]:
    """Medians per output over all points, and per branch of the graph, where there are `LEAST_POINTS` or more.

    A branch is an interval of lengths between two ``switches``, with sequences in one call apart from sequences in
    several calls (decode steps are computed in another way). ``eps``: of the precision.
    """
    groups: dict[str, dict[tuple[int, bool] | None, list[tuple[Point, float]]]] = {}
    for point, output, ratio in _ratios(points, eps):
        branches = groups.setdefault(output, defaultdict(list))
        for branch in (None, (bisect_left(switches, point.length), bool(point.calls))):
            branches[branch].append((point, ratio))
    medians = []
    for output, branches in groups.items():
        cached = any(branch is not None and branch[1] for branch in branches)
        for branch, members in branches.items():
            # where there is but one branch, it is the whole
            if len(members) >= LEAST_POINTS and (branch is None or len(branches) > 2):
                calls: Calls = None if branch is None or not cached else "several" if branch[1] else "one"
                medians.append(_judged(output, members, calls))
    return medians


def _ratios(points: Sequence[Point], eps: float) -> list[tuple[Point, str, float]]:
    """Point, output and ratio; all cache tensors of a point count as one output with their largest error."""
    errors: dict[tuple[object, str], list[Point]] = defaultdict(list)
    for point in points:
        if point.tolerance is not None:
            errors[point.point, CACHE if point.output.startswith("present.") else point.output].append(point)
    ratios = []
    for (_, output), tensors in errors.items():
        error = max(np.inf if tensor.error is None else tensor.error for tensor in tensors)
        baseline = max(tensor.worst_baseline_error or 0.0 for tensor in tensors)
        ratios.append((tensors[0], output, float(error / max(baseline, LEAST_EPS * eps))))
    return ratios


def _judged(output: str, members: Sequence[tuple[Point, float]], calls: Calls) -> MedianRatio:
    lengths = [point.length for point, _ in members]
    ratio = float(np.median([ratio for _, ratio in members]))
    return MedianRatio(
        output=output,
        shortest=min(lengths),
        longest=max(lengths),
        calls=calls,
        points=len(members),
        # JSON has no infinity
        ratio=min(ratio, float(np.finfo(np.float32).max)),
        limit=LIMIT,
        verdict="pass" if ratio <= LIMIT else "fail",
    )
