"""The measurements: contestants in turn, round after round, every figure from a fresh process."""

import datetime
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import posexport
from posexport.bench.contestants import Contestant
from posexport.bench.environments import FailedError, run
from posexport.bench.machine import commit, machine
from posexport.bench.recipes import Made, make
from posexport.bench.records import Document, Figure, Point, Result, figure, judge

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, kw_only=True)
class Effort:
    """Calls of a process: ``warmup`` first, then timed ones, ``runs`` or what fits in ``seconds``, at ``least``."""

    warmup: int = 1
    runs: int = 30
    least: int = 3
    seconds: float = 2.0


@dataclass(frozen=True, kw_only=True)
class Heat:
    """Contestants that are measured together; the first is the floor."""

    model: str
    contestants: list[Contestant]
    points: list[Point]
    effort: Effort = field(default_factory=Effort)


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What all measurements of a run share."""

    rounds: int = 3
    threads: int = 0
    provider: str = "cpu"
    spinning: bool = False


@dataclass
class _Entry:
    """A contestant during a heat."""

    contestant: Contestant
    made: Made | None = None
    failed: str | None = None


@dataclass
class _Found:
    """What a contestant's processes reported at one point."""

    rounds: list[list[float]] = field(default_factory=list)
    computed: list[float] = field(default_factory=list)
    growths: list[int] = field(default_factory=list)
    peaks: list[int] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)
    failed: str | None = None


def bench(
    suite: str,
    heats: Sequence[Heat],
    conditions: Conditions,
    *,
    progress: Progress | None = None,
    remark: Callable[[str], None] = lambda _: None,
    keep: Callable[[Document], None] = lambda _: None,
) -> Document:
    """Measure everything. A contestant that fails is reported with its reason, and the others go on.

    ``keep`` is given what has been found after every point.
    """
    tell = progress or (lambda *_: None)
    started, created, where = time.perf_counter(), datetime.datetime.now(datetime.UTC), machine()
    versions: dict[str, str] = {"posexport": posexport.__version__}
    results = []
    total = sum(len(heat.contestants) * (1 + conditions.rounds * len(heat.points)) for heat in heats)
    done = 0
    for heat in heats:
        entries = []
        for contestant in heat.contestants:
            tell(done, total, f"making {contestant.name}")
            entries.append(_entry(contestant, remark))
            done += 1
        for point in heat.points:
            found = {entry.contestant.name: _Found(failed=entry.failed) for entry in entries}
            with tempfile.TemporaryDirectory() as answers:
                for turn in range(conditions.rounds):
                    for number, entry in enumerate(entries):
                        tell(done, total, f"{point.text}, round {turn + 1}, {entry.contestant.name}")
                        answer = Path(answers, f"{number}.npy")
                        _measure(entry, found[entry.contestant.name], point, heat.effort, conditions, answer, versions)
                        done += 1
                results.append(_result(heat, point, entries, found, Path(answers)))
                document = Document(
                    suite=suite,
                    threads=conditions.threads,
                    provider=conditions.provider,
                    rounds=conditions.rounds,
                    machine=where,
                    commit=commit(),
                    created=created.isoformat(timespec="seconds"),
                    seconds=time.perf_counter() - started,
                    versions=dict(versions),
                    results=list(results),
                )
                keep(document)
    return document


def _entry(contestant: Contestant, remark: Callable[[str], None]) -> _Entry:
    if contestant.recipe is None:
        return _Entry(contestant)
    try:
        return _Entry(contestant, made=make(contestant.recipe, remark))
    except FailedError as err:
        return _Entry(contestant, failed=f"the export failed: {err}")


def _measure(
    entry: _Entry,
    found: _Found,
    point: Point,
    effort: Effort,
    conditions: Conditions,
    answer: Path,
    versions: dict[str, str],
) -> None:
    """One process; what it reports is added to ``found``."""
    if found.failed is not None:
        return
    who = entry.contestant
    model = str((entry.made.folder / who.model).absolute()) if entry.made else who.model
    job: dict[str, Any] = {
        "model": model,
        "batch": point.batch,
        "past": point.past,
        "new": point.new,
        **vars(effort),
        "threads": conditions.threads,
        "provider": conditions.provider,
        "vocab": who.vocab,
        "answer": str(answer),
        "options": {**who.options, "spinning": conditions.spinning},
    }
    try:
        ended = run(who.environment, f"posexport.bench.workers.{who.worker}", [json.dumps(job)])
    except FailedError as err:
        found.failed = str(err)
        return
    report = json.loads(ended.output.splitlines()[-1])
    found.rounds.append(report["ms"])
    found.computed += report["cpu_ms"]
    found.loads.append(report["load_s"])
    found.growths.append(report["growth"])
    found.peaks += [] if ended.peak is None else [ended.peak]
    versions |= report["versions"]


def _result(heat: Heat, point: Point, entries: Sequence[_Entry], found: dict[str, _Found], answers: Path) -> Result:
    floor = heat.contestants[0].name
    of_floor = figure(floor, found[floor].rounds) if not found[floor].failed else None
    first: dict[str, Any] = {}
    figures = []
    for number, entry in enumerate(entries):
        who, got = entry.contestant, found[entry.contestant.name]
        if got.failed is not None:
            figures.append(Figure(contestant=who.name, ours=who.rival is None, failed=got.failed))
            continue
        answer = np.load(answers / f"{number}.npy")
        reference = first.setdefault(who.weights, answer)
        figures.append(
            figure(
                who.name,
                got.rounds,
                of_floor.ms if of_floor else None,
                ours=who.rival is None,
                peak=max(got.peaks, default=None),
                growth=max(got.growths),
                cpu_ms=statistics.median(got.computed),
                load_seconds=min(got.loads),
                difference=None if reference is answer else difference(answer, reference),
                made_seconds=entry.made.seconds if entry.made else None,
                made_peak=entry.made.peak if entry.made else None,
            )
        )
    reason = judge(of_floor.rounds) if of_floor else f"the floor failed: {found[floor].failed}"
    return Result(model=heat.model, point=point, floor=floor, valid=reason is None, reason=reason, figures=figures)


def difference(answer: Any, reference: Any) -> float:
    """The largest difference, relative to the reference's largest entry; infinite where the shapes differ."""
    if answer.shape != reference.shape:
        return float("inf")
    return float(np.abs(answer - reference).max() / np.abs(reference).max())
