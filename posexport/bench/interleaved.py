"""Interleaved calls of two processes, so that what slows the machine for a while slows both alike.

A ratio of two medians taken minutes apart says as much about the machine as about the models; the median of ratios of
calls that lie next to each other does not. Imports no torch.
"""

from dataclasses import dataclass, field
from typing import Any, Protocol

from posexport.bench.environments import FailedError


@dataclass(frozen=True, kw_only=True)
class SamplingBudget:
    """Calls of a process: ``warmup`` first, then timed ones, ``runs`` or what fits in ``seconds``, at ``least``."""

    warmup: int = 1
    runs: int = 30
    least: int = 3
    seconds: float = 4.0


class Asked(Protocol):
    """A process that computes when it is told to (`posexport.bench.workers.job`)."""

    def ask(self, line: str) -> dict[str, Any]:
        """What it answers to ``begin``, ``call`` or ``end``; raises FailedError."""
        ...


class LostError(Exception):
    """The process that a candidate is interleaved with has failed; the message says why."""


@dataclass
class Times:
    """Milliseconds of calls, and of all their threads; what they take relative to the other's calls around them."""

    ms: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)


def interleave(one: Asked, other: Asked | None, budget: SamplingBudget) -> Times:
    """Time the calls of ``one``, each between two of ``other``.

    Raises:
        FailedError: ``one`` failed.
        LostError: ``other`` did.
    """
    times, spent = Times(), 0.0
    one.ask("begin")
    before = _milliseconds(other)
    while len(times.ms) < budget.runs and (len(times.ms) < budget.least or spent <= 1e3 * budget.seconds):
        call = one.ask("call")
        times.ms.append(call["ms"])
        times.cpu_ms.append(call["cpu_ms"])
        spent += call["ms"]
        if before is not None and other is not None:
            after = _lost(other, "call")["ms"]
            times.ratios.append(call["ms"] / ((before + after) / 2))
            spent += after
            before = after
    return times


def _milliseconds(other: Asked | None) -> float | None:
    """Of its first call after a new beginning."""
    if other is None:
        return None
    _lost(other, "begin")
    return float(_lost(other, "call")["ms"])


def _lost(other: Asked, line: str) -> dict[str, Any]:
    try:
        return other.ask(line)
    except FailedError as err:
        raise LostError(str(err)) from err
