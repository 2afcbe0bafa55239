"""A run: what is made and measured, in which order, and what a result says of it."""

import datetime
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import posexport
from posexport.bench import resume
from posexport.bench.contestants import Contestant
from posexport.bench.environments import FailedError, named, pinned, run
from posexport.bench.machine import available, commit, machine
from posexport.bench.measurement import Conditions, Entry, Found, Measurement
from posexport.bench.recipes import code, make
from posexport.bench.records import LARGEST_DIFFERENCE, Document, Figure, Point, Result, figure, judge
from posexport.bench.turns import Effort

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, kw_only=True)
class Heat:
    """Contestants that are measured together; the first is the floor.

    ``within``: seconds of the run after which it is left out, unless it has begun.
    """

    model: str
    contestants: list[Contestant]
    points: list[Point]
    effort: Effort = field(default_factory=Effort)
    within: float | None = None


def bench(
    suite: str,
    heats: Sequence[Heat],
    conditions: Conditions,
    *,
    progress: Progress | None = None,
    remark: Callable[[str], None] = lambda _: None,
    keep: Callable[[Document], None] = lambda _: None,
    before: Document | None = None,
) -> Document:
    """Measure everything. A contestant that fails is reported with its reason, and the others go on.

    ``keep`` is given what has been found after every point. What ``before`` has found, of the same contestants on a
    quiet machine, is not measured again (`posexport.bench.resume`).
    """
    tell = progress or (lambda *_: None)
    started, created, where = time.perf_counter(), datetime.datetime.now(datetime.UTC), machine()
    versions: dict[str, str] = {**(before.versions if before else {}), "posexport": posexport.__version__}
    for name in dict.fromkeys(name for heat in heats for who in heat.contestants for name in who.environments):
        versions |= {named(name, library): version for library, version in pinned(name).items()}
    results = {
        (heat.model, point): resume.known(before, heat.model, point, [who.name for who in heat.contestants])
        for heat in heats
        for point in heat.points
    }
    left_out, of_weights = list[str](), _References()
    total = sum(len(heat.contestants) * (1 + conditions.rounds * len(heat.points)) for heat in heats)
    done = 0

    def document() -> Document:
        return Document(
            suite=suite,
            threads=conditions.threads,
            provider=conditions.provider,
            rounds=conditions.rounds,
            machine=where,
            commit=commit(),
            code=code(),
            left_out=list(left_out),
            created=created.isoformat(timespec="seconds"),
            seconds=time.perf_counter() - started + (before.seconds if before else 0),
            versions=dict(versions),
            results=[result for result in results.values() if result is not None],
        )

    latest = None
    with tempfile.TemporaryDirectory() as answers:
        for heat in heats:
            points = [point for point in heat.points if results[heat.model, point] is None]
            done += conditions.rounds * len(heat.contestants) * (len(heat.points) - len(points))
            spent = time.perf_counter() - started
            if points and heat.within is not None and spent > heat.within:
                left_out.append(f"{heat.model}: the run had taken {spent:.0f} s by then, more than {heat.within:.0f} s")
                points = []
                keep(latest := document())
            entries = []
            for contestant in heat.contestants if points else ():
                tell(done, total, f"making {contestant.name}")
                entries.append(_entry(contestant, remark))
                done += 1
            for point in points:
                free = available()
                found = {
                    entry.contestant.name: Found(
                        failed=entry.failed, left_out=_too_large(entry.contestant, heat.contestants[0], point, free)
                    )
                    for entry in entries
                }
                measure = Measurement(point, heat.effort, conditions, Path(answers), versions)
                for turn in range(conditions.rounds):
                    with measure.beside(entries, found) as beside:
                        for entry in entries:
                            tell(done, total, f"{point.text}, round {turn + 1}, {entry.contestant.name}")
                            measure.one(entry, found[entry.contestant.name], beside)
                            done += 1
                results[heat.model, point] = _result(heat, point, entries, found, measure, of_weights)
                keep(latest := document())
    return latest or document()


def _entry(contestant: Contestant, remark: Callable[[str], None]) -> Entry:
    if contestant.recipe is None:
        return Entry(contestant, nodes=_nodes(Path(contestant.model)))
    try:
        made = make(contestant.recipe, remark)
    except FailedError as err:
        return Entry(contestant, failed=f"the export failed: {err}")
    # the folder that onnxruntime-genai reads holds one graph, of this name
    return Entry(contestant, made=made, nodes=_nodes(made.folder / (contestant.model or "model.onnx")))


def _nodes(graph: Path) -> int | None:
    """Of a graph, counted in another process: this one must stay small. None of what is no graph."""
    if graph.suffix != ".onnx" or not graph.is_file():
        return None
    try:
        return int(run(None, "posexport.bench.nodes", [str(graph)]).output)
    except FailedError:
        return None


def _too_large(who: Contestant, floor: Contestant, point: Point, free: int | None) -> str | None:
    """Why the machine cannot run it beside the floor; None where it can, or that is not known."""
    pairs = point.batch * point.new * (point.past + point.new)
    needed, beside = pairs * who.pair_bytes, pairs * floor.pair_bytes
    if free is None or needed + (beside if beside <= free else 0) <= free:
        return None
    if needed <= free:
        return f"it needs {needed / 1e9:.1f} GB and the baseline {beside / 1e9:.1f} GB, of {free / 1e9:.1f} GB free"
    return f"it needs {needed / 1e9:.1f} GB, and the machine has {free / 1e9:.1f} GB free"


class _References:
    """The first answers of every set of weights at every point, to which later ones are held."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, Point], tuple[str, Any]] = {}

    def difference(self, who: Contestant, point: Point, path: Path) -> tuple[float | None, str | None]:
        """Of the answer in ``path`` from the first one of these weights, and whose that is; None: it is the first."""
        answer = np.load(path)
        first, kept = self._first.setdefault((who.weights, point), (who.name, answer))
        return (None, None) if kept is answer else (difference(answer, kept), first)


def _result(
    heat: Heat,
    point: Point,
    entries: Sequence[Entry],
    found: dict[str, Found],
    measure: Measurement,
    of_weights: _References,
) -> Result:
    floor = heat.contestants[0].name
    figures = []
    for entry in entries:
        who, got = entry.contestant, found[entry.contestant.name]
        ours, made = who.rival is None, entry.made
        if got.failed is not None or got.left_out is not None:
            left_out = got.left_out if got.failed is None else None
            figures.append(
                Figure(contestant=who.name, ours=ours, nodes=entry.nodes, failed=got.failed, left_out=left_out)
            )
            continue
        differs, reference = of_weights.difference(who, point, measure.answer(entry))
        figures.append(
            figure(
                who.name,
                got.rounds,
                got.ratios if got.relative_to == floor else (),
                ours=ours,
                peak=max(got.peaks, default=None),
                growth=max(got.growths),
                above=max(got.aboves, default=None),
                cpu_ms=statistics.median(got.computed),
                load_seconds=min(got.loads),
                # JSON knows no infinity
                difference=differs if differs is not None and np.isfinite(differs) else None,
                wrong=differs is not None and not differs <= LARGEST_DIFFERENCE,
                nodes=entry.nodes,
                made_seconds=made.seconds if made else None,
                made_peak=made.peak if made else None,
                remark=made.remark if made else None,
                reference=reference,
            )
        )
    reason = _judged(floor, found)
    return Result(model=heat.model, point=point, floor=floor, valid=reason is None, reason=reason, figures=figures)


def _judged(floor: str, found: dict[str, Found]) -> str | None:
    """Why the result is not valid. Where the floor does not fit the machine, the first that does shows its quiet."""
    if found[floor].failed is not None:
        return f"the baseline failed: {found[floor].failed}"
    alone = next((got.ratios for name, got in found.items() if got.relative_to == name), None)
    return "nothing ran twice" if alone is None else judge(alone)


def difference(answer: Any, reference: Any) -> float:
    """The largest difference, relative to the reference's largest entry; infinite where the shapes differ."""
    if answer.shape != reference.shape:
        return float("inf")
    return float(np.abs(answer - reference).max() / np.abs(reference).max())
