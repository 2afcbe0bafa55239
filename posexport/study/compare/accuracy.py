"""Accuracy, time and memory of exported models in ONNX Runtime, and the whole job of one encoding. Imports no torch."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from posexport.base.options.recipe import Recipe
from posexport.errors import PosexportError
from posexport.inspect.bench.candidate import Candidate
from posexport.inspect.bench.measurement import Conditions, SamplingBudget
from posexport.inspect.bench.records import Figure, Point
from posexport.inspect.bench.run import Run
from posexport.proof.agreement.cosine import cosine
from posexport.run.providers import make_session
from posexport.run.wrapped_session import refusal
from posexport.study.compare import tasks
from posexport.study.compare.records import LIMIT, AtPrecision, Cell, Cost, Result, Setup, at_precision

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

    from posexport.base.targets.precisions import PrecisionName
    from posexport.sources.source import Source


#: rows of one call: bounds the memory of the longest
ROWS = 20


def accuracies(model: Path, setup: Setup, limit: int | None) -> dict[str, dict[str, Cell]]:
    """The accuracy by task and length; `LIMIT` for a length over ``limit``, which the graph must reject.

    Raises:
        PosexportError: there are too few rows to ask every question.
        RuntimeError: the graph takes a length over its limit.
    """
    session = make_session(model, threads=1)
    cells_by_task: dict[str, dict[str, Cell]] = {task.name: {} for task in tasks.TASKS}
    for length in setup.lengths:
        cells = [LIMIT] * len(cells_by_task) if limit is not None and length > limit else _right(session, setup, length)
        if LIMIT in cells and not _refuses(session, length):
            raise RuntimeError(f"{model.name} has a limit of {limit} positions and takes {length}")
        for task, cell in zip(tasks.TASKS, cells, strict=True):
            cells_by_task[task.name][str(length)] = cell  # type: ignore[assignment]
    return cells_by_task


def agreement(model: Path, float32: Path, setup: Setup) -> float:
    """The mean cosine between a token's logits and the float32 model's, at the trained length."""
    tokens, _ = tasks.draw(np.random.default_rng([setup.seed, 2]), ROWS, setup.length)
    outputs = [make_session(path, threads=1).run(["logits"], feeds(tokens))[0] for path in (model, float32)]
    rows, expected = (logits.reshape(-1, logits.shape[-1]) for logits in outputs)
    return float(cosine(rows, expected).mean())


def feeds(tokens: tasks.Ints) -> dict[str, tasks.Ints]:
    """The inputs of a call: no token is padding."""
    return {"input_ids": tokens, "attention_mask": np.ones_like(tokens)}


def _right(session: "InferenceSession", setup: Setup, length: int) -> list[float]:
    rng = np.random.default_rng([setup.seed, 1, length])
    tokens, answers = tasks.draw(rng, setup.asked_rows, length)
    counts = np.zeros((len(tasks.TASKS), 2), dtype=np.int64)
    for start in range(0, len(tokens), ROWS):
        batch = slice(start, start + ROWS)
        (logits,) = session.run(["logits"], feeds(tokens[batch]))
        for number, task in enumerate(tasks.TASKS):
            counts[number] += tasks.right(answers[number, batch], logits[..., task.channels].argmax(-1))
    for task, (_, total) in zip(tasks.TASKS, counts, strict=True):
        if not total:
            raise PosexportError(f"{len(tokens)} rows of {length} tokens do not ask {task.name} once; ask more rows")
    return [int(good) / int(total) for good, total in counts]


def _refuses(session: "InferenceSession", length: int) -> bool:
    tokens, _ = tasks.draw(np.random.default_rng(0), 1, length)
    try:
        session.run(None, feeds(tokens))
    except Exception as err:  # noqa: BLE001 (onnxruntime's exception classes say nothing; the message decides)
        return refusal(err) is not None
    return False


def one(encoding: str, setup: Setup, path: Path) -> Result:
    """Train the encoding's model, export it to ``path``, ask it on ONNX Runtime.

    Raises:
        PosexportError: it cannot be trained or exported.
    """
    from posexport.conversion.export import negotiate
    from posexport.conversion.export.build import build
    from posexport.sources.source import Source, digest, model_of
    from posexport.study.compare.train import TASK, make, own_parameters, train

    start = time.perf_counter()
    model = make(encoding, setup)
    loss = train(model, setup)
    name = f"encoder-{encoding}"
    source = Source.of(model_of(model, TASK), name=name, kind="builtin", sha256=digest(model))
    build(source, path, Recipe(task=TASK, opset=negotiate.DEFAULT_OPSET))
    limit = source.limits.max_length
    return Result(
        encoding=encoding,
        limit=limit,
        parameters=sum(p.numel() for p in model.parameters()),
        own_parameters=sum(p.numel() for p in own_parameters(model)),
        file_bytes=path.stat().st_size,
        loss=loss,
        accuracy=accuracies(path, setup, limit),
        seconds=time.perf_counter() - start,
        precisions={name: _at(name, source, path, setup) for name in setup.precisions},
    )


def _at(precision: "PrecisionName", source: "Source", float32: Path, setup: Setup) -> AtPrecision:
    """Exports the trained model in another precision and compares it with the one in float32."""
    from posexport.conversion.export import negotiate
    from posexport.conversion.export.build import build

    path = at_precision(float32, precision)
    build(source, path, Recipe(task=source.task, opset=negotiate.DEFAULT_OPSET, precision=precision))
    return AtPrecision(
        file_bytes=path.stat().st_size,
        accuracy=accuracies(path, setup, source.limits.max_length),
        cosine=agreement(path, float32, setup),
    )


def measure(models: Mapping[str, Path], setup: Setup, progress: Callable[[int, int, str], None]) -> dict[str, Cost]:
    """The cost of each model, also in the further precisions; the first model is the baseline of all ratios."""
    paths = {(name, ""): path for name, path in models.items()}
    paths |= {(name, p): at_precision(path, p) for name, path in models.items() for p in setup.precisions}
    # distinct weights: the benchmark compares the outputs of candidates with the same ones
    candidates = {
        key: Candidate(name=" ".join(key).strip(), model=str(path), vocab=tasks.VOCAB, weights=path.name)
        for key, path in paths.items()
    }
    # one thread: idle threads of one model would slow the other
    run = Run("compare", Conditions(rounds=1, threads=1), total=1, progress=progress)
    budget = SamplingBudget(runs=setup.timed_runs, seconds=float("inf"))
    point = Point(batch=setup.timed_rows, new=setup.length)
    result = run.measure("compare", list(candidates.values()), point, budget)
    figures = dict(zip(candidates, result.figures, strict=True))
    return {
        name: Cost(
            ms=_time(figures[name, ""]),
            to_nope=_ratio(figures[name, ""]),
            growth=figures[name, ""].growth or None,
            precisions={p: _ratio(figures[name, p]) / _ratio(figures[name, ""]) for p in setup.precisions},
        )
        for name in models
    }


def _time(figure: Figure) -> float:
    if figure.ms is None:
        raise PosexportError(f"the time of {figure.candidate} could not be measured: {figure.failed}")
    return figure.ms


def _ratio(figure: Figure) -> float:
    if figure.to_baseline is None:
        raise PosexportError(f"the time of {figure.candidate} could not be measured: {figure.failed}")
    return figure.to_baseline
