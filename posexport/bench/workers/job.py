"""What every measurement has in common: its tokens, its clock, its answer. Imports numpy alone."""

import importlib.metadata
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from posexport.bench.workers.memory import Memory


@dataclass(frozen=True, kw_only=True)
class Job:
    """One measurement: ``past`` tokens are read first, then calls of ``new`` tokens are timed.

    Without a past every call begins anew; with one each call goes on from the one before. Calls end after ``runs``, or
    after ``least`` once ``seconds`` are over. ``answer``: where the first call's answer is saved.
    """

    model: str
    batch: int
    past: int
    new: int
    runs: int
    least: int
    seconds: float
    warmup: int
    threads: int
    vocab: int
    answer: str
    provider: str = "cpu"
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def calls(self) -> int:
        """Timed calls and the ones before."""
        return self.warmup + self.runs

    @property
    def room(self) -> int:
        """Tokens that a cache must hold."""
        return self.past + self.new * (self.calls if self.past else 1)

    def tokens(self) -> NDArray[np.int64]:
        """[batch, room] ids, the same for every contestant."""
        return np.random.default_rng(0).integers(0, self.vocab, (self.batch, self.room))


class Reader(Protocol):
    """A model that is loaded."""

    def clear(self) -> None:
        """Forget the tokens read so far."""

    def read(self, ids: NDArray[np.int64]) -> Any:
        """The answer to the new tokens [batch, new]: the last one's logits [batch, vocab], or all hidden states.

        An array, or what `numpy.asarray` makes one of: that is not timed.
        """


def main(load: Callable[[Job], Reader], libraries: tuple[str, ...]) -> None:
    """Measure the job of the command line; the last line of stdout is the result as JSON."""
    job = Job(**json.loads(sys.argv[1]))
    started = time.perf_counter()
    reader = load(job)
    loaded = time.perf_counter() - started
    ids, memory, answer = job.tokens(), Memory(), None
    memory.mark()
    if job.past:
        reader.read(ids[:, : job.past])
    first, times, computed = 0.0, list[float](), list[float]()
    for call in range(job.calls):
        at = job.past + call * job.new if job.past else 0
        if not job.past:
            reader.clear()
        del answer  # else its memory would count as the call's
        started, busy = time.perf_counter(), time.process_time()
        answer = reader.read(ids[:, at : at + job.new])
        times.append(time.perf_counter() - started)
        computed.append(time.process_time() - busy)
        if call == 0:
            np.save(job.answer, np.asarray(answer))
            first = started
        if len(times) >= job.warmup + job.least and time.perf_counter() - first > job.seconds:
            break
    found = {
        "ms": [1e3 * t for t in times[job.warmup :]],
        "cpu_ms": [1e3 * t for t in computed[job.warmup :]],
        "load_s": loaded,
        "peak": memory.whole(),
        "growth": memory.growth(),
        "held": getattr(reader, "held", None),
        "versions": versions(libraries),
    }
    sys.stdout.write(f"\n{json.dumps(found)}\n")


def versions(libraries: tuple[str, ...]) -> dict[str, str]:
    """Of what is installed."""
    found = {}
    for name in libraries:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
