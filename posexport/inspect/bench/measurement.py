"""One point: a fresh process of every candidate, its calls interleaved with the calls of one shared partner process.

A ratio of two medians minutes apart says as much about the machine as about the models; the median of ratios of
neighbouring calls does not. (pyperf times one command after the other, and in one interpreter.)
"""

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from posexport.base.targets.providers import DEFAULT_PROVIDER
from posexport.inspect.bench.candidate import Candidate
from posexport.inspect.bench.processes import FailedError, Worker
from posexport.inspect.bench.records import Clock, Point
from posexport.inspect.bench.workers.job import clocked


@dataclass(frozen=True, kw_only=True)
class SamplingBudget:
    """Calls of a process: ``warmup`` first, then timed ones, ``runs`` or what fits in ``seconds``, at ``least``."""

    warmup: int = 1
    runs: int = 30
    least: int = 3
    seconds: float = 4.0


class WorkerLike(Protocol):
    """A process that computes on request (`posexport.inspect.bench.workers.job`)."""

    def ask(self, line: str) -> dict[str, Any]:
        """The reply to ``begin``, ``call`` or ``end``; raises FailedError."""
        ...


@dataclass(frozen=True)
class InProcess:
    """A function of this process with the interface of a worker, to time calls without a partner."""

    call: Callable[[], object]
    warmup: int

    def ask(self, line: str) -> dict[str, Any]:
        """Warms up at ``begin``, and times a call at ``call``."""
        if line == "begin":
            for _ in range(self.warmup):
                self.call()
            return {}
        return clocked(self.call)[1]


class PartnerError(Exception):
    """The partner process has failed; the message says why."""


@dataclass
class Times:
    """Milliseconds of calls, of all their threads, and ratios to the partner's neighbouring calls."""

    ms: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)


def interleave(worker: WorkerLike, partner: WorkerLike | None, budget: SamplingBudget, clock: Clock = "wall") -> Times:
    """Time the calls of ``worker``, each between two of ``partner``.

    ``clock``: with ``cpu`` a call takes the processor time of its threads, which other processes change less.

    Raises:
        FailedError: ``worker`` failed.
        PartnerError: ``partner`` did.
    """
    times, spent = Times(), 0.0
    worker.ask("begin")
    kind = "cpu_ms" if clock == "cpu" else "ms"
    before = _milliseconds(partner, kind)
    while len(times.ms) < budget.runs and (len(times.ms) < budget.least or spent <= 1e3 * budget.seconds):
        call = worker.ask("call")
        times.ms.append(call[kind])
        times.cpu_ms.append(call["cpu_ms"])
        spent += call["ms"]
        if before is not None and partner is not None:
            after = _lost(partner, "call")[kind]
            times.ratios.append(call[kind] / ((before + after) / 2))
            spent += after
            before = after
    return times


def _milliseconds(partner: WorkerLike | None, kind: str) -> float | None:
    """Milliseconds of the partner's first call after ``begin``."""
    if partner is None:
        return None
    _lost(partner, "begin")
    return float(_lost(partner, "call")[kind])


def _lost(partner: WorkerLike, line: str) -> dict[str, Any]:
    try:
        return partner.ask(line)
    except FailedError as err:
        raise PartnerError(str(err)) from err


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """The conditions of all measurements of a run."""

    rounds: int = 3
    threads: int = 0
    provider: str = DEFAULT_PROVIDER
    provider_options: Mapping[str, Any] = field(default_factory=dict)
    spinning: bool = False
    clock: Clock = "wall"


@dataclass
class Samples:
    """The reports of a candidate's processes at one point."""

    rounds: list[list[float]] = field(default_factory=list)
    #: to calls of the partner, round by round
    ratios: list[list[float]] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    growths: list[int] = field(default_factory=list)
    aboves: list[int] = field(default_factory=list)
    peaks: list[int] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)
    #: the partner
    relative_to: str = ""
    failed: str | None = None
    left_out: str | None = None

    @property
    def is_missing(self) -> bool:
        """There are no samples of this candidate."""
        return self.failed is not None or self.left_out is not None


@dataclass
class Partner:
    """The partner process of a round: the first candidate that works."""

    name: str = ""
    worker: Worker | None = None


@dataclass(frozen=True)
class Measurement:
    """Processes of candidates at one point, and their reports by the candidates' names."""

    point: Point
    budget: SamplingBudget
    conditions: Conditions
    answers: Path
    versions: dict[str, str]
    samples: dict[str, Samples]

    def answer(self, candidate: Candidate) -> Path:
        """The file of the candidate's first answer."""
        return self.answers / f"{hashlib.sha256(candidate.name.encode()).hexdigest()}.npy"

    @contextlib.contextmanager
    def partner(self, candidates: Sequence[Candidate]) -> Iterator[Partner]:
        """The baseline's process; where that does not work it is reported, and the next candidate's is tried."""
        started = Partner()
        for candidate in candidates:
            samples = self.samples[candidate.name]
            if samples.is_missing:
                continue
            worker = None
            try:
                worker = self._start(candidate)
                worker.ask("begin")
            except FailedError as err:
                samples.failed = str(err)
                if worker is not None:
                    worker.kill()
                continue
            started = Partner(candidate.name, worker)
            break
        try:
            yield started
        finally:
            if started.worker is not None:
                started.worker.kill()

    def measure(self, candidate: Candidate, partner: Partner) -> None:
        """Run a fresh process of a candidate and add its report to the samples."""
        samples = self.samples[candidate.name]
        if samples.is_missing:
            return
        try:
            try:
                times, report, peak = self._times(candidate, partner.worker)
            except PartnerError:
                if partner.worker is not None:
                    partner.worker.kill()
                partner.worker = None
                times, report, peak = self._times(candidate, None)
        except FailedError as err:
            samples.failed = str(err)
            return
        samples.rounds.append(times.ms)
        if times.ratios:
            samples.ratios.append(times.ratios)
            samples.relative_to = partner.name
        samples.cpu_ms += times.cpu_ms
        samples.loads.append(report["load_s"])
        samples.growths.append(report["growth"])
        samples.aboves += [] if report["held"] is None else [max(0, report["growth"] - report["held"])]
        samples.peaks += [bytes_ for bytes_ in (report["peak"] or peak,) if bytes_]
        # another environment has other versions
        where = f"{candidate.environment}: " if candidate.environment else ""
        self.versions.update({f"{where}{name}": version for name, version in report["versions"].items()})

    def _times(self, candidate: Candidate, partner: Worker | None) -> tuple[Times, dict[str, Any], int | None]:
        worker = self._start(candidate)
        try:
            times = interleave(worker, partner, self.budget, self.conditions.clock)
            return times, worker.ask("end"), worker.close()
        finally:
            worker.kill()

    def _provider(self, candidate: Candidate) -> dict[str, Any]:
        if candidate.provider is not None:
            return {"provider": candidate.provider, "provider_options": candidate.provider_options}
        options = dict(self.conditions.provider_options)
        return {"provider": self.conditions.provider, "provider_options": options}

    def _start(self, candidate: Candidate) -> Worker:
        job: dict[str, Any] = {
            "model": candidate.model,
            "batch": self.point.batch,
            "past": self.point.past,
            "new": self.point.new,
            "padding": self.point.padding,
            "runs": self.budget.runs,
            "warmup": self.budget.warmup,
            "threads": self.conditions.threads,
            **self._provider(candidate),
            "vocab": candidate.vocab,
            "answer": str(self.answer(candidate)),
            "options": {**candidate.options, "spinning": self.conditions.spinning},
        }
        return Worker(candidate.worker, [json.dumps(job)], python=candidate.python)
