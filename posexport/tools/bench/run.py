"""A run of the benchmark: points that are measured, one after the other, and the document of what was found."""

import datetime
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

import posexport
from posexport.tools.bench.answers import References
from posexport.tools.bench.candidate import Candidate
from posexport.tools.bench.interleaved import SamplingBudget
from posexport.tools.bench.machine import commit, machine
from posexport.tools.bench.measurement import Conditions, Measurement, Samples
from posexport.tools.bench.records import Document, Figure, Held, Point, Result, figure, judge


class Run:
    """Results so far. ``progress`` is told of every process; ``total``: how many points there are.

    ``versions``: what is known of libraries before any is run. Candidates of the same weights are compared across
    points of one run.
    """

    def __init__(
        self,
        suite: str,
        conditions: Conditions,
        *,
        total: int,
        progress: Callable[[int, int, str], None] = lambda *_: None,
        versions: Mapping[str, str] | None = None,
    ) -> None:
        self._suite, self._conditions, self._total, self._progress = suite, conditions, total, progress
        self._started, self._created = time.perf_counter(), datetime.datetime.now(datetime.UTC)
        self._machine, self._references = machine(), References()
        self._versions = {**(versions or {}), "posexport": posexport.__version__}
        self.results: list[Result] = []
        self.mixed: list[Held] = []

    def measure(
        self,
        model: str,
        candidates: Sequence[Candidate],
        point: Point,
        budget: SamplingBudget | None = None,
        *,
        left_out: Mapping[str, str] | None = None,
    ) -> Result:
        """All rounds of a point; the first candidate is the baseline, ``left_out`` says why one is not measured.

        A candidate that fails is reported with its reason, and the others go on.
        """
        conditions, reasons = self._conditions, left_out or {}
        samples = {c.name: Samples(failed=c.failed, left_out=reasons.get(c.name)) for c in candidates}
        baseline, steps = candidates[0].name, conditions.rounds * len(candidates)
        done, total = len(self.results) * steps, self._total * steps
        with tempfile.TemporaryDirectory() as answers:
            measurement = Measurement(
                point, budget or SamplingBudget(), conditions, Path(answers), self._versions, samples
            )
            for number in range(conditions.rounds):
                with measurement.partner(candidates) as partner:
                    for candidate in candidates:
                        self._progress(done, total, f"{point.text}, round {number + 1}, {candidate.name}")
                        measurement.measure(candidate, partner)
                        done += 1
            figures = [_figure(candidate, baseline, measurement, self._references) for candidate in candidates]
        reason = _judged(baseline, samples)
        result = Result(
            model=model, point=point, baseline=baseline, valid=reason is None, reason=reason, figures=figures
        )
        self.results.append(result)
        return result

    def document(self) -> Document:
        """What was found until now."""
        return Document(
            suite=self._suite,
            threads=self._conditions.threads,
            provider=self._conditions.provider,
            rounds=self._conditions.rounds,
            machine=self._machine,
            commit=commit(),
            created=self._created.isoformat(timespec="seconds"),
            seconds=time.perf_counter() - self._started,
            versions=dict(self._versions),
            results=list(self.results),
            mixed=list(self.mixed),
        )


def _figure(candidate: Candidate, baseline: str, measurement: Measurement, references: References) -> Figure:
    samples, export = measurement.samples[candidate.name], candidate.export
    if samples.is_missing:
        return Figure(
            candidate=candidate.name,
            by_posexport=candidate.by_posexport,
            nodes=candidate.nodes,
            failed=samples.failed,
            left_out=samples.left_out if samples.failed is None else None,
        )
    compared = references.compared(candidate, measurement.point, measurement.answer(candidate))
    differs = None if compared is None else compared.difference
    return figure(
        candidate.name,
        samples.rounds,
        samples.ratios if samples.relative_to == baseline else (),
        by_posexport=candidate.by_posexport,
        peak=max(samples.peaks, default=None),
        growth=max(samples.growths),
        above=max(samples.aboves, default=None),
        cpu_ms=statistics.median(samples.cpu_ms),
        load_seconds=min(samples.loads),
        # JSON knows no infinity
        difference=differs if differs is not None and np.isfinite(differs) else None,
        cosine=None if compared is None else compared.cosine,
        wrong=compared is not None and not compared.right,
        nodes=candidate.nodes,
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
