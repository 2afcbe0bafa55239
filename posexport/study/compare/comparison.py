"""The comparison: training and measurement in processes, and the tables of results."""

import importlib.metadata
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from posexport.base.system.extras import require
from posexport.base.system.files import write_whole
from posexport.base.targets.precisions import FP32, precision_named
from posexport.errors import PosexportError
from posexport.study.compare import tasks
from posexport.study.compare.accuracy import measure, one
from posexport.study.compare.page import page
from posexport.study.compare.records import (
    Document,
    Result,
    Setup,
    TableRow,
    TaskInfo,
    measured,
    measured_at,
    noise,
    to_csv,
)
from posexport.study.compare.workers import MODELS, each, opened
from posexport.version import VERSION

BASELINE = "nope"
_TOOLS = ("torch", "onnx", "onnxscript", "onnxruntime-gpu", "onnxruntime")

Progress = Callable[[int, int, str], None]


def compare(
    target: Path,
    encodings: Sequence[str] = (),
    setup: Setup | None = None,
    *,
    jobs: int = 2,
    force: bool = False,
    progress: Progress | None = None,
) -> Document:
    """Compare ``encodings`` (none: all) and write the tables into the directory ``target``.

    ``nope`` is always among them: it is the baseline. ``force``: replace a comparison that is there. ``jobs``:
    processes that train, of one thread each; time and memory are measured after that, one model at a time.

    Raises:
        PosexportError: an unknown encoding, a setup that cannot be trained, a directory that is not free.
    """
    require("posexport compare", "matplotlib")
    setup = _checked(setup or Setup())
    names, unfit = _chosen(encodings)
    if jobs < 1:
        raise PosexportError(f"jobs must be at least 1, got {jobs}")
    with opened(target, force=force):
        finished, failed = _work(target / MODELS, names, setup, jobs, progress or (lambda *_: None))
        rows = _rows(names, unfit, finished, failed)
        infos = [TaskInfo(name=t.name, question=t.question, answers=t.answers, chance=t.chance) for t in tasks.TASKS]
        document = Document(
            setup=setup,
            lengths=list(setup.lengths),
            tasks=infos,
            rows=rows,
            precisions=[row for name in names if name in finished for row in measured_at(finished[name])],
            noise=noise(finished[BASELINE]),
        )
        tables = {"json": document.to_json() + b"\n", "csv": to_csv(document), "html": page(document)}
        for suffix, data in tables.items():
            write_whole(target / f"compare.{suffix}", data, force=True)
    return document


def _work(
    models: Path, names: Sequence[str], setup: Setup, jobs: int, progress: Progress
) -> tuple[dict[str, Result], dict[str, str]]:
    """Trains, then measures. Returns results, and reasons of failures, by encoding."""
    trained, failed = dict[str, Result](), dict[str, str]()
    paths = {name: models / f"{name}.onnx" for name in names}
    total = 2 * len(names)
    progress(0, total, "training")
    calls = {name: (name, setup, path) for name, path in paths.items()}
    for done, (name, result) in enumerate(each(one, calls, processes=jobs), 1):
        if isinstance(result, PosexportError):
            failed[name], total = str(result), total - 1
            if name == BASELINE:
                raise PosexportError(f"{BASELINE}, which all others are compared with, failed: {result}") from result
        else:
            trained[name] = result
        progress(done, total, f"training, {name} is done")
    # after all training, which would disturb the figures
    costs = measure(
        {name: paths[name] for name in names if name in trained},
        setup,
        lambda done, of, what: progress(len(names) + done, len(names) + of, f"time and memory, {what}"),
    )
    return {name: msgspec.structs.replace(trained[name], cost=costs[name]) for name in trained}, failed


def _rows(
    names: Sequence[str], unfit: Mapping[str, str], finished: Mapping[str, Result], failed: Mapping[str, str]
) -> list[TableRow]:
    """`BASELINE` first, then by name."""
    from posexport.encodings.encoding import ENCODINGS

    rows = []
    for name in sorted([*names, *unfit], key=lambda name: (name != BASELINE, name)):
        acts_on = list(ENCODINGS[name].oracles)
        if name in finished:
            rows.append(measured(finished[name], finished[BASELINE], acts_on))
        elif name in failed:
            rows.append(TableRow(encoding=name, status="failed", reason=failed[name], acts_on=acts_on))
        else:
            rows.append(TableRow(encoding=name, status="not applicable", reason=unfit[name], acts_on=acts_on))
    return rows


def _chosen(encodings: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Those to be trained, `BASELINE` first, and those that cannot be, with the reason."""
    from posexport.encodings.build import lookup
    from posexport.encodings.encoding import ENCODINGS
    from posexport.sources.builtin import models

    known = models()
    names: list[str] = []
    unfit: dict[str, str] = {}
    for name in dict.fromkeys([BASELINE, *(encodings or ENCODINGS)]):
        cls = lookup(name).cls
        if f"encoder-{name}" in known:
            names.append(name)
        elif cls.axes > 1:
            unfit[name] = f"its positions have {cls.axes} coordinates, those of text have one"
        elif cls.causal:
            unfit[name] = "it is for decoders, where later tokens are masked"
        else:
            unfit[name] = f"there is no encoder-{name}"
    return names, unfit


def _checked(setup: Setup) -> Setup:
    """The setup with the versions of the tools; PosexportError for one that cannot be trained."""
    for key in ("steps", "hidden", "layers", "heads", "feedforward", "rows", "asked_rows", "timed_rows", "timed_runs"):
        if getattr(setup, key) < 1:
            raise PosexportError(f"{key} must be at least 1, got {getattr(setup, key)}")
    for name in setup.precisions:
        precision_named(name)
    if FP32.name in setup.precisions or len(set(setup.precisions)) < len(setup.precisions):
        names = ", ".join(setup.precisions)
        raise PosexportError(f"precisions are those beside fp32, each once; got {names}: leave the others out")
    if setup.seed < 0:
        raise PosexportError(f"seed must be 0 or more, got {setup.seed}")
    if setup.length < tasks.SHORTEST:
        raise PosexportError(f"length must be at least {tasks.SHORTEST} for the tasks' tokens, got {setup.length}")
    if setup.hidden % setup.heads:
        raise PosexportError(f"hidden must be a multiple of heads, got {setup.hidden} and {setup.heads}")
    tools = {"posexport": VERSION}
    for name in _TOOLS:
        try:
            tools[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return msgspec.structs.replace(setup, tools=tools)
