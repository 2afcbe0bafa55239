"""One point: a fresh process of every contestant, whose calls take turns with those of one that all share."""

import contextlib
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from posexport.bench.contestants import Contestant
from posexport.bench.environments import FailedError, Worker, named
from posexport.bench.recipes import Made
from posexport.bench.records import Point
from posexport.bench.turns import Effort, LostError, Times, take_turns
from posexport.targets.providers import DEFAULT_PROVIDER


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What all measurements of a run share."""

    rounds: int = 3
    threads: int = 0
    provider: str = DEFAULT_PROVIDER
    spinning: bool = False


@dataclass
class Entry:
    """A contestant during a heat."""

    contestant: Contestant
    made: Made | None = None
    failed: str | None = None
    nodes: int | None = None


@dataclass
class Found:
    """What a contestant's processes reported at one point."""

    rounds: list[list[float]] = field(default_factory=list)
    #: to calls of `Beside`, round by round
    ratios: list[list[float]] = field(default_factory=list)
    computed: list[float] = field(default_factory=list)
    growths: list[int] = field(default_factory=list)
    aboves: list[int] = field(default_factory=list)
    peaks: list[int] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)
    #: the name of `Beside`
    relative_to: str = ""
    failed: str | None = None
    left_out: str | None = None


@dataclass
class Beside:
    """Who all contestants of a round take turns with: the floor, or the first that works."""

    name: str = ""
    worker: Worker | None = None


@dataclass(frozen=True)
class Measurement:
    """Processes of contestants at one point."""

    point: Point
    effort: Effort
    conditions: Conditions
    answers: Path
    versions: dict[str, str]

    def answer(self, entry: Entry) -> Path:
        """Where the contestant's first answer is."""
        return self.answers / f"{hashlib.sha256(entry.contestant.name.encode()).hexdigest()}.npy"

    @contextlib.contextmanager
    def beside(self, entries: Sequence[Entry], found: dict[str, Found]) -> Iterator[Beside]:
        """The process that all take turns with. One that does not work is reported, and the next one is taken."""
        taken = Beside()
        for entry in entries:
            of = found[entry.contestant.name]
            if of.failed is not None or of.left_out is not None:
                continue
            worker = None
            try:
                worker = self._start(entry)
                worker.ask("begin")
            except FailedError as err:
                of.failed = str(err)
                if worker is not None:
                    worker.kill()
                continue
            taken = Beside(entry.contestant.name, worker)
            break
        try:
            yield taken
        finally:
            if taken.worker is not None:
                taken.worker.kill()

    def one(self, entry: Entry, found: Found, beside: Beside) -> None:
        """A fresh process of a contestant; what it reports is added to ``found``."""
        if found.failed is not None or found.left_out is not None:
            return
        try:
            try:
                times, report, peak = self._times(entry, beside.worker)
            except LostError:
                if beside.worker is not None:
                    beside.worker.kill()
                beside.worker = None
                times, report, peak = self._times(entry, None)
        except FailedError as err:
            found.failed = str(err)
            return
        found.rounds.append(times.ms)
        if times.ratios:
            found.ratios.append(times.ratios)
            found.relative_to = beside.name
        found.computed += times.cpu_ms
        found.loads.append(report["load_s"])
        found.growths.append(report["growth"])
        found.aboves += [] if report["held"] is None else [max(0, report["growth"] - report["held"])]
        found.peaks += [most for most in (report["peak"] or peak,) if most]
        environment = entry.contestant.environment
        self.versions.update({named(environment, name): found for name, found in report["versions"].items()})

    def _times(self, entry: Entry, beside: Worker | None) -> tuple[Times, dict[str, Any], int | None]:
        worker = self._start(entry)
        try:
            times = take_turns(worker, beside, self.effort)
            return times, worker.ask("end"), worker.close()
        finally:
            worker.kill()

    def _start(self, entry: Entry) -> Worker:
        who = entry.contestant
        job: dict[str, Any] = {
            "model": str((entry.made.folder / who.model).absolute()) if entry.made else who.model,
            "batch": self.point.batch,
            "past": self.point.past,
            "new": self.point.new,
            "runs": self.effort.runs,
            "warmup": self.effort.warmup,
            "threads": self.conditions.threads,
            "provider": self.conditions.provider,
            "vocab": who.vocab,
            "answer": str(self.answer(entry)),
            "options": {**who.options, "spinning": self.conditions.spinning},
        }
        return Worker(who.environment, f"posexport.bench.workers.{who.worker}", [json.dumps(job)])
