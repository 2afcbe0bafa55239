"""Time and memory of one exported model beside that of ``nope``. To be called in a fresh process. Imports no torch."""

import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from posexport.runtime.providers import make_session
from posexport.tools.compare import tasks
from posexport.tools.compare.accuracy import feeds
from posexport.tools.compare.records import Cost, Setup, at_precision

if TYPE_CHECKING:
    from onnxruntime import InferenceSession


def peak() -> int | None:
    """This process's peak memory in bytes; None where the system does not say.

    Linux is not asked by getrusage, whose figure a child inherits from the process that started it.
    """
    status = Path("/proc/self/status")
    if status.exists():
        lines = [line.split() for line in status.read_text().splitlines()]
        return next((int(fields[1]) * 1024 for fields in lines if fields and fields[0] == "VmHWM:"), None)
    if sys.platform == "win32":
        return None
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def measure(model: Path, nope: Path, setup: Setup) -> Cost:
    """Peak memory of the model's first call, then the median time of its calls and of ``nope``'s, in turn."""
    tokens, _ = tasks.draw(np.random.default_rng([setup.seed, 2]), setup.timed_rows, setup.length)
    inputs = feeds(tokens)
    # one thread, so that no idle one waits busily beside the other model's
    session = make_session(model, threads=1)
    before = peak()
    session.run(None, inputs)
    after = peak()
    baseline = make_session(nope, threads=1)
    baseline.run(None, inputs)
    times: list[list[float]] = [[], []]
    for _ in range(setup.timed_runs):
        for seconds, each in zip(times, (session, baseline), strict=True):
            seconds.append(_seconds(each, inputs))
    ms, nope_ms = (1e3 * statistics.median(seconds) for seconds in times)
    return Cost(
        ms=ms,
        nope_ms=nope_ms,
        growth=None if before is None or after is None else after - before,
        precisions={name: _ratio(at_precision(model, name), session, inputs, setup) for name in setup.precisions},
    )


def _ratio(path: Path, float32: "InferenceSession", inputs: dict[str, tasks.Ints], setup: Setup) -> float:
    """The median time of a model's calls relative to float32's, in turn."""
    session = make_session(path, threads=1)
    session.run(None, inputs)
    pairs = [(_seconds(session, inputs), _seconds(float32, inputs)) for _ in range(setup.timed_runs)]
    return statistics.median(mine for mine, _ in pairs) / statistics.median(other for _, other in pairs)


def _seconds(session: "InferenceSession", inputs: dict[str, tasks.Ints]) -> float:
    start = time.perf_counter()
    session.run(None, inputs)
    return time.perf_counter() - start
