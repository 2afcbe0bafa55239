"""A run of the benchmark: what is exported and measured, in which order, and what becomes of the samples."""

import datetime
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import posexport
from posexport.bench import resume
from posexport.bench.candidates import Candidate
from posexport.bench.environments import FailedError, named, pinned, run
from posexport.bench.interleaved import SamplingBudget
from posexport.bench.machine import commit, machine
from posexport.bench.measurement import Conditions, Entry, Measurement, Samples
from posexport.bench.recipes import code, make
from posexport.bench.records import LARGEST_DIFFERENCE, Document, Figure, Point, Result, figure, judge
from posexport.machine import available
from posexport.parity.agreement.cosine import cosine as cosine_of
from posexport.parity.criterion import EPS
from posexport.targets.precisions import FP32, PrecisionName

Progress = Callable[[int, int, str], None]
#: answers of quantized graphs are one model's where their cosines are at least these
LEAST_COSINE: Mapping[PrecisionName, float] = {"int8": 0.95, "int4": 0.5, "int4-fp16": 0.5}
#: answers in 16 bits may differ by so many eps: no measure of exactness, which `posexport verify` is for
HALF_STEPS = 64


@dataclass(frozen=True, kw_only=True)
class Case:
    """Candidates that are measured together; the first is the baseline.

    ``within``: seconds of the run after which the case is left out, unless it has begun.
    """

    model: str
    candidates: list[Candidate]
    points: list[Point]
    budget: SamplingBudget = field(default_factory=SamplingBudget)
    within: float | None = None


def bench(
    suite: str,
    cases: Sequence[Case],
    conditions: Conditions,
    *,
    progress: Progress | None = None,
    remark: Callable[[str], None] = lambda _: None,
    keep: Callable[[Document], None] = lambda _: None,
    before: Document | None = None,
) -> Document:
    """Measure everything. A candidate that fails is reported with its reason, and the others go on.

    ``keep`` is called with the document after every point. What ``before`` has of the same candidates on a quiet
    machine is not measured again (`posexport.bench.resume`).
    """
    run = _Run(suite, cases, conditions, progress or (lambda *_: None), remark, before)
    latest = None
    with tempfile.TemporaryDirectory() as answers:
        for case in cases:
            points = run.missing_points(case)
            if points and run.is_late(case):
                keep(latest := run.document())
                continue
            entries = run.export(case) if points else []
            for point in points:
                run.measure(case, point, entries, Path(answers))
                keep(latest := run.document())
    return latest or run.document()


class _Run:
    """The state of a run: results by case and point, versions, and how much is done."""

    def __init__(
        self,
        suite: str,
        cases: Sequence[Case],
        conditions: Conditions,
        progress: Progress,
        remark: Callable[[str], None],
        before: Document | None,
    ) -> None:
        self._suite, self._conditions, self._progress, self._remark = suite, conditions, progress, remark
        self._started, self._created = time.perf_counter(), datetime.datetime.now(datetime.UTC)
        self._machine, self._seconds_before = machine(), before.seconds if before else 0
        self._versions: dict[str, str] = {**(before.versions if before else {}), "posexport": posexport.__version__}
        for name in dict.fromkeys(e for case in cases for candidate in case.candidates for e in candidate.environments):
            self._versions |= {named(name, library): version for library, version in pinned(name).items()}
        self._results = {
            (case.model, point): resume.known(before, case.model, point, [c.name for c in case.candidates])
            for case in cases
            for point in case.points
        }
        self._left_out, self._references = list[str](), References()
        self._total = sum(len(case.candidates) * (1 + conditions.rounds * len(case.points)) for case in cases)
        self._done = 0

    def missing_points(self, case: Case) -> list[Point]:
        """The points that no earlier run has measured."""
        points = [point for point in case.points if self._results[case.model, point] is None]
        self._done += self._conditions.rounds * len(case.candidates) * (len(case.points) - len(points))
        return points

    def is_late(self, case: Case) -> bool:
        """Whether the run has taken too long to begin the case, which the document then says."""
        spent = time.perf_counter() - self._started
        if case.within is None or spent <= case.within:
            return False
        self._left_out.append(f"{case.model}: the run had taken {spent:.0f} s by then, more than {case.within:.0f} s")
        return True

    def export(self, case: Case) -> list[Entry]:
        entries = []
        for candidate in case.candidates:
            self._progress(self._done, self._total, f"exporting {candidate.name}")
            entries.append(_entry(candidate, self._remark))
            self._done += 1
        return entries

    def measure(self, case: Case, point: Point, entries: Sequence[Entry], answers: Path) -> None:
        """All rounds of a point, and its result."""
        free, baseline = available(), case.candidates[0]
        samples = {
            entry.candidate.name: Samples(
                failed=entry.failed, left_out=_too_large(entry.candidate, baseline, point, free)
            )
            for entry in entries
        }
        measurement = Measurement(point, case.budget, self._conditions, answers, self._versions, samples)
        for number in range(self._conditions.rounds):
            with measurement.partner(entries) as partner:
                for entry in entries:
                    text = f"{point.text}, round {number + 1}, {entry.candidate.name}"
                    self._progress(self._done, self._total, text)
                    measurement.measure(entry, partner)
                    self._done += 1
        figures = [_figure(entry, baseline.name, measurement, self._references) for entry in entries]
        reason = _judged(baseline.name, samples)
        self._results[case.model, point] = Result(
            model=case.model,
            point=point,
            baseline=baseline.name,
            valid=reason is None,
            reason=reason,
            figures=figures,
        )

    def document(self) -> Document:
        return Document(
            suite=self._suite,
            threads=self._conditions.threads,
            provider=self._conditions.provider,
            rounds=self._conditions.rounds,
            machine=self._machine,
            commit=commit(),
            code=code(),
            left_out=list(self._left_out),
            created=self._created.isoformat(timespec="seconds"),
            seconds=time.perf_counter() - self._started + self._seconds_before,
            versions=dict(self._versions),
            results=[result for result in self._results.values() if result is not None],
        )


def _entry(candidate: Candidate, remark: Callable[[str], None]) -> Entry:
    if candidate.recipe is None:
        return Entry(candidate, nodes=_nodes(Path(candidate.model)))
    try:
        export = make(candidate.recipe, remark)
    except FailedError as err:
        return Entry(candidate, failed=f"the export failed: {err}")
    # the folder that onnxruntime-genai reads holds one graph, of this name
    return Entry(candidate, export=export, nodes=_nodes(export.folder / (candidate.model or "model.onnx")))


def _nodes(graph: Path) -> int | None:
    """Of a graph, counted in another process: this one must stay small. None of what is no graph."""
    if graph.suffix != ".onnx" or not graph.is_file():
        return None
    try:
        return int(run(None, "posexport.bench.nodes", [str(graph)]).output)
    except FailedError:
        return None


def _too_large(candidate: Candidate, baseline: Candidate, point: Point, free: int) -> str | None:
    """Why the machine has too little memory for it and the baseline; None where it can."""
    pairs = point.batch * point.new * (point.past + point.new)
    needed, partner = pairs * candidate.pair_bytes, pairs * baseline.pair_bytes
    if needed + (partner if partner <= free else 0) <= free:
        return None
    if needed <= free:
        return f"it needs {needed / 1e9:.1f} GB and the baseline {partner / 1e9:.1f} GB, of {free / 1e9:.1f} GB free"
    return f"it needs {needed / 1e9:.1f} GB, and the machine has {free / 1e9:.1f} GB free"


class References:
    """The first answers of every set of weights at every point, to which later ones are held."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, Point], tuple[Candidate, Any]] = {}

    def compared(self, candidate: Candidate, point: Point, path: Path) -> "_Compared | None":
        """The answer in ``path`` with the first one of these weights; None: it is the first."""
        answer = np.load(path)
        first, kept = self._first.setdefault((candidate.weights, point), (candidate, answer))
        if kept is answer:
            return None
        gap = difference(answer, kept)
        below = [name for name in (first.precision, candidate.precision) if name != FP32.name]
        cosine = None
        if below and answer.shape == kept.shape:
            cosine = float(cosine_of(answer.reshape(-1, answer.shape[-1]), kept.reshape(-1, kept.shape[-1])).mean())
        return _Compared(gap, cosine, first.name, right(gap, cosine, below))


class _Compared(NamedTuple):
    """An answer with another one: the largest difference, the cosine, whose it is, whether the model is the same."""

    difference: float
    cosine: float | None
    reference: str
    right: bool


def right(gap: float, cosine: float | None, precisions: Sequence[PrecisionName]) -> bool:
    """Whether answers are one model's: to rounding, or as far apart as ``precisions`` below float32 may bring them."""
    quantized = [LEAST_COSINE[name] for name in precisions if name in LEAST_COSINE]
    if quantized:
        return cosine is not None and cosine >= min(quantized)
    return gap <= max([LARGEST_DIFFERENCE, *(HALF_STEPS * EPS[name] for name in precisions)])


def _figure(entry: Entry, baseline: str, measurement: Measurement, references: References) -> Figure:
    candidate, export = entry.candidate, entry.export
    samples, by_posexport = measurement.samples[candidate.name], candidate.third_party is None
    if samples.is_missing:
        return Figure(
            candidate=candidate.name,
            by_posexport=by_posexport,
            nodes=entry.nodes,
            failed=samples.failed,
            left_out=samples.left_out if samples.failed is None else None,
        )
    compared = references.compared(candidate, measurement.point, measurement.answer(entry))
    differs = None if compared is None else compared.difference
    return figure(
        candidate.name,
        samples.rounds,
        samples.ratios if samples.relative_to == baseline else (),
        by_posexport=by_posexport,
        peak=max(samples.peaks, default=None),
        growth=max(samples.growths),
        above=max(samples.aboves, default=None),
        cpu_ms=statistics.median(samples.cpu_ms),
        load_seconds=min(samples.loads),
        # JSON knows no infinity
        difference=differs if differs is not None and np.isfinite(differs) else None,
        cosine=None if compared is None else compared.cosine,
        wrong=compared is not None and not compared.right,
        nodes=entry.nodes,
        export_seconds=export.seconds if export else None,
        export_peak=export.peak if export else None,
        remark=export.remark if export else None,
        reference=None if compared is None else compared.reference,
    )


def _judged(baseline: str, samples: dict[str, Samples]) -> str | None:
    """Why the result is not valid. Where the baseline needs too much memory, the first that runs shows the noise."""
    if samples[baseline].failed is not None:
        return f"the baseline failed: {samples[baseline].failed}"
    to_itself = next((each.ratios for name, each in samples.items() if each.relative_to == name), None)
    return "nothing ran twice" if to_itself is None else judge(to_itself)


def difference(answer: Any, reference: Any) -> float:
    """The largest difference, relative to the reference's largest entry; infinite where the shapes differ."""
    if answer.shape != reference.shape:
        return float("inf")
    return float(np.abs(answer - reference).max() / np.abs(reference).max())
