"""Time and memory of exported models relative to ``nope``, measured by ``bench``. Imports no torch."""

from collections.abc import Callable, Mapping
from pathlib import Path

from posexport.errors import PosexportError
from posexport.tools.bench.candidate import Candidate
from posexport.tools.bench.measurement import Conditions, SamplingBudget
from posexport.tools.bench.records import Figure, Point
from posexport.tools.bench.run import Run
from posexport.tools.compare import tasks
from posexport.tools.compare.records import Cost, Setup, at_precision


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
