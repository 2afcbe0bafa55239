"""Interleaved calls of two processes, so that what slows the machine for a while slows both alike.

A ratio of two medians taken minutes apart says as much about the machine as about the models; the median of ratios of
calls that lie next to each other does not. (pyperf times one command after
the other, and in one interpreter.) Imports no torch.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from posexport.tools.bench.processes import FailedError
from posexport.tools.bench.workers.job import clocked


@dataclass(frozen=True, kw_only=True)
class SamplingBudget:
    """Calls of a process: ``warmup`` first, then timed ones, ``runs`` or what fits in ``seconds``, at ``least``."""

    warmup: int = 1
    runs: int = 30
    least: int = 3
    seconds: float = 4.0


class Asked(Protocol):
    """A process that computes when it is told to (`posexport.tools.bench.workers.job`)."""

    def ask(self, line: str) -> dict[str, Any]:
        """What it answers to ``begin``, ``call`` or ``end``; raises FailedError."""
        ...


@dataclass(frozen=True)
class InProcess:
    """A function of this process, asked as a worker is: for calls that are not compared with another model's."""

    call: Callable[[], object]
    warmup: int

    def ask(self, line: str) -> dict[str, Any]:
        """Warms up at ``begin``, and times a call at ``call``."""
        if line == "begin":
            for _ in range(self.warmup):
                self.call()
            return {}
        return clocked(self.call)[1]


class LostError(Exception):
    """The process that a candidate is interleaved with has failed; the message says why."""


@dataclass
class Times:
    """Milliseconds of calls, and of all their threads; what they take relative to the other's calls around them."""

    ms: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)


def interleave(worker: Asked, partner: Asked | None, budget: SamplingBudget) -> Times:
    """Time the calls of ``worker``, each between two of ``partner``.

    Raises:
        FailedError: ``worker`` failed.
        LostError: ``partner`` did.
    """
    times, spent = Times(), 0.0
    worker.ask("begin")
    before = _milliseconds(partner)
    while len(times.ms) < budget.runs and (len(times.ms) < budget.least or spent <= 1e3 * budget.seconds):
        call = worker.ask("call")
        times.ms.append(call["ms"])
        times.cpu_ms.append(call["cpu_ms"])
        spent += call["ms"]
        if before is not None and partner is not None:
            after = _lost(partner, "call")["ms"]
            times.ratios.append(call["ms"] / ((before + after) / 2))
            spent += after
            before = after
    return times


def _milliseconds(partner: Asked | None) -> float | None:
    """Of its first call after a new beginning."""
    if partner is None:
        return None
    _lost(partner, "begin")
    return float(_lost(partner, "call")["ms"])


def _lost(partner: Asked, line: str) -> dict[str, Any]:
    try:
        return partner.ask(line)
    except FailedError as err:
        raise LostError(str(err)) from err
