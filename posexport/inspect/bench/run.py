"""A run of the benchmark: measures points one after the other, compares outputs, and collects the results."""

import datetime
import json
import platform
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil

import posexport
from posexport.base.system.machine import processor, total
from posexport.base.system.threads import affinity
from posexport.base.targets.precisions import FP32, PrecisionName
from posexport.inspect.bench.candidate import Candidate
from posexport.inspect.bench.measurement import Conditions, Measurement, Samples, SamplingBudget
from posexport.inspect.bench.processes import FailedError, run
from posexport.inspect.bench.records import (
    LARGEST_DIFFERENCE,
    Document,
    Figure,
    Held,
    Machine,
    Point,
    Result,
    figure,
    judge,
)
from posexport.inspect.bench.workers.mixed import Mixed
from posexport.proof.agreement.cosine import cosine as cosine_of
from posexport.proof.criterion import EPS


def machine() -> Machine:
    return Machine(
        cpu=processor(),
        cores=affinity(),
        memory=total(),
        system=platform.platform(terse=True),
        load=psutil.getloadavg()[0],
    )


def commit() -> str | None:
    """The commit of the package's checkout, with a + where files differ from it; None outside of one."""

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ("git", *arguments), cwd=Path(__file__).parent, capture_output=True, encoding="utf-8", check=True
        )
        return done.stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + (
            "+" if git("status", "--porcelain", "--", ":/posexport", ":/models") else ""
        )
    except (OSError, subprocess.CalledProcessError):
        return None


#: outputs of quantized graphs count as right if their cosines are at least these
LEAST_COSINE: Mapping[PrecisionName, float] = {"int8": 0.95, "int4": 0.5, "int4-fp16": 0.5}
#: eps by which outputs in 16 bits may differ: a check against mistakes; `posexport verify` measures exactness
HALF_STEPS = 64


class Compared(NamedTuple):
    """A comparison of two outputs: the largest difference, the cosine, the reference candidate, the verdict."""

    difference: float
    cosine: float | None
    reference: str
    right: bool


class References:
    """The first outputs of every set of weights at every point, with which later ones are compared."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, Point], tuple[Candidate, Any]] = {}

    def compared(self, candidate: Candidate, point: Point, path: Path) -> Compared | None:
        """The answer in ``path`` with the first one of these weights; None: it is the first."""
        answer = np.load(path)
        first, reference = self._first.setdefault((candidate.weights, point), (candidate, answer))
        if reference is answer:
            return None
        gap = difference(answer, reference)
        below = [name for name in (first.precision, candidate.precision) if name != FP32.name]
        cosine = None
        if below and answer.shape == reference.shape:
            cosine = float(
                cosine_of(answer.reshape(-1, answer.shape[-1]), reference.reshape(-1, reference.shape[-1])).mean()
            )
        return Compared(gap, cosine, first.name, right(gap, cosine, below))


def right(gap: float, cosine: float | None, precisions: list[PrecisionName]) -> bool:
    """Whether outputs agree up to rounding, or up to the error of ``precisions`` below float32."""
    quantized = [LEAST_COSINE[name] for name in precisions if name in LEAST_COSINE]
    if quantized:
        return cosine is not None and cosine >= min(quantized)
    return gap <= max([LARGEST_DIFFERENCE, *(HALF_STEPS * EPS[name] for name in precisions)])


def difference(answer: Any, reference: Any) -> float:
    """The largest difference, relative to the reference's largest entry; infinite where the shapes differ."""
    if answer.shape != reference.shape:
        return float("inf")
    return float(np.abs(answer - reference).max() / np.abs(reference).max())


class Run:
    """Collects results. ``progress`` is called for every process; ``total``: the number of points.

    ``versions``: of libraries, as far as they are known before a worker runs. Candidates of the same weights are
    compared across points of one run.
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
        """The document of the results so far."""
        return Document(
            suite=self._suite,
            threads=self._conditions.threads,
            provider=self._conditions.provider,
            rounds=self._conditions.rounds,
            clock=self._conditions.clock,
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
            reads=candidate.reads,
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
        reads=candidate.reads,
        export_seconds=export.seconds if export else None,
        export_peak=export.peak if export else None,
        remark=export.remark if export else None,
        reference=None if compared is None else compared.reference,
    )


def _judged(baseline: str, samples: dict[str, Samples]) -> str | None:
    """Why the result is not valid, or None. If the baseline fails, the first candidate that runs shows the noise."""
    if samples[baseline].failed is not None:
        return f"the baseline failed: {samples[baseline].failed}"
    to_itself = next((sample.ratios for name, sample in samples.items() if sample.relative_to == name), None)
    return "nothing ran twice" if to_itself is None else judge(to_itself)


#: batches of one candidate
CALLS = 200


def held(
    candidates: Sequence[Candidate],
    conditions: Conditions,
    calls: int = CALLS,
    progress: Callable[[int, int, str], None] = lambda *_: None,
) -> list[Held]:
    """Measures each candidate in a fresh process."""
    measured = []
    for number, candidate in enumerate(candidates):
        progress(number, len(candidates), f"mixed batches, {candidate.name}")
        bundle = str(Path(candidate.model).parent)
        job = Mixed(
            bundle=bundle,
            calls=calls,
            threads=conditions.threads,
            provider=conditions.provider,
            provider_options=dict(conditions.provider_options),
        )
        try:
            ended = run("posexport.inspect.bench.workers.mixed", [json.dumps(asdict(job))])
        except FailedError as err:
            measured.append(Held(candidate=candidate.name, calls=calls, failed=str(err)))
            continue
        measured.append(Held(candidate=candidate.name, calls=calls, **json.loads(ended.output.splitlines()[-1])))
    return measured
