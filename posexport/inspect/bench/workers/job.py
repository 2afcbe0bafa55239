"""The common part of all workers: tokens, clock, stored output. Imports nothing but numpy.

A worker computes on request, so that calls of two workers can be interleaved (`posexport.inspect.bench.measurement`).
"""

import importlib.metadata
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from posexport.inspect.bench.workers.memory import Memory


@dataclass(frozen=True, kw_only=True)
class Job:
    """One measurement: ``past`` tokens are read first, then calls of ``new`` tokens are timed.

    Without a past every call is independent; with one each call continues the one before. ``runs``: timed calls at
    most, after ``warmup`` ones. ``padding``: of calls without a past, the share of tokens that is padding. ``answer``:
    where the first call's answer is saved, with zeros at padding.
    """

    model: str
    batch: int
    past: int
    new: int
    runs: int
    warmup: int
    threads: int
    vocab: int
    answer: str
    padding: float = 0
    provider: str = "cpu"
    provider_options: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def calls(self) -> int:
        """Timed calls, the ones before, and the last one of the process that is interleaved with."""
        return self.warmup + self.runs + 1

    @property
    def room(self) -> int:
        """Tokens that a cache must hold."""
        return self.past + self.new * (self.calls if self.past else 1)

    def mask(self) -> NDArray[np.int64]:
        """[batch, new]: 1 at tokens, 0 at padding on the right of rows whose lengths grow evenly to ``new``."""
        shortest = max(1, round(self.new * (1 - 2 * self.padding)))
        lengths = np.linspace(shortest, self.new, self.batch).round() if self.padding else np.full(self.batch, self.new)
        return (np.arange(self.new) < lengths[:, None]).astype(np.int64)

    def tokens(self) -> NDArray[np.int64]:
        """[batch, room] ids, the same for every candidate."""
        return np.random.default_rng(0).integers(0, self.vocab, (self.batch, self.room))


class Reader(Protocol):
    """A model that is loaded."""

    def clear(self) -> None:
        """Forget the tokens read so far."""

    def read(self, ids: NDArray[np.int64]) -> Any:
        """The answer to the new tokens [batch, new]: the last one's logits [batch, vocab], or all hidden states.

        An array, or what `numpy.asarray` makes one of: that is not timed.
        """


class _Calls:
    """The calls of one process, on request."""

    def __init__(self, job: Job, reader: Reader) -> None:
        self._job, self._reader, self._ids = job, reader, job.tokens()
        self._memory, self._answer = Memory(), None
        self._saved, self._at = False, 0
        self._memory.mark()

    def begin(self) -> dict[str, Any]:
        """Read the past again, then warm up."""
        self._reader.clear()
        self._at = self._job.past
        if self._job.past:
            self._reader.read(self._ids[:, : self._job.past])
        for _ in range(self._job.warmup):
            self.call()
        return {}

    def call(self) -> dict[str, Any]:
        """Makes the next call and returns its milliseconds, and the sum over its threads."""
        job = self._job
        if not job.past:
            self._reader.clear()
        self._answer = None  # else its memory would count as the call's
        ids = self._ids[:, self._at : self._at + job.new]
        self._answer, times = clocked(lambda: self._reader.read(ids))
        self._at += job.new if job.past else 0
        if not self._saved:
            answer = np.asarray(self._answer)
            if job.padding and answer.ndim > 2:
                answer = answer * job.mask()[..., None]
            np.save(job.answer, answer)
            self._saved = True
        return times

    def end(self) -> dict[str, Any]:
        """Returns the memory of all calls."""
        growth, held = self._memory.growth(), getattr(self._reader, "held", None)
        return {"peak": self._memory.whole(), "growth": growth, "held": held}


def clocked(call: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """The value of a call, its milliseconds, and the sum over its threads."""
    started, busy = time.perf_counter(), time.process_time()
    returned = call()
    took, computed = time.perf_counter() - started, time.process_time() - busy
    return returned, {"ms": 1e3 * took, "cpu_ms": 1e3 * computed}


def main(reader: Callable[[Job], Reader], libraries: tuple[str, ...]) -> None:
    """Reply to each line of stdin, ``begin``, ``call`` or ``end``, with a line of JSON."""
    job = Job(**json.loads(sys.argv[1]))
    started = time.perf_counter()
    calls = _Calls(job, reader(job))
    loaded = time.perf_counter() - started
    for line in sys.stdin:
        command = line.strip()
        answer = {"begin": calls.begin, "call": calls.call, "end": calls.end}[command]()
        if command == "end":
            answer |= {"load_s": loaded, "versions": versions(libraries)}
        sys.stdout.write(f"\n{json.dumps(answer)}\n")
        sys.stdout.flush()


def versions(libraries: tuple[str, ...]) -> dict[str, str]:
    installed = {}
    for name in libraries:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed
