"""Reads ONNX Runtime's profile of some calls kernel by kernel. Imports no torch."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from posexport.errors import PosexportError
from posexport.inspect.explain.origins import Origin, Origins
from posexport.run.placement import Event, kernels, read_profile

#: of the whole call
_CALL = "model_run"
#: run the kernels of their bodies
_AROUND = frozenset(["If", "Loop", "Scan", "SequenceMap"])


@dataclass(frozen=True)
class Run:
    """One kernel in one call: its name, and the microseconds that it took; 0 where it runs others."""

    name: str
    op_type: str
    provider: str
    origin: Origin
    us: float


@dataclass(frozen=True)
class Call:
    """One call of the model: all of it, in microseconds, and its kernels."""

    us: float
    runs: list[Run]


@dataclass(frozen=True)
class Cost:
    """The runs of a kernel of one name in a call, and the median over calls of their time."""

    op_type: str
    provider: str
    origin: Origin
    count: int
    us: float


def calls(profile: Path, origins: Origins) -> list[Call]:
    """The calls in a profile, in order. PosexportError if it is not as known here."""
    events = read_profile(profile)
    # outer ones first: a body's kernels follow the one that runs it
    runs = sorted(kernels(events), key=lambda e: (e.ts, -e.dur))
    calls_, at = [], 0
    for call in sorted((e for e in events if e.cat == "Session" and e.name == _CALL), key=lambda e: e.ts):
        while at < len(runs) and runs[at].ts < call.ts:
            at += 1
        start = at
        while at < len(runs) and runs[at].ts < call.ts + call.dur:
            at += 1
        calls_.append(Call(call.dur, alone(runs[start:at], origins)))
    if not any(call.runs for call in calls_):
        raise PosexportError(
            "the profile of the installed ONNX Runtime names no kernels of a call; use onnxruntime 1.22 or later"
        )
    return calls_


def alone(events: Sequence[Event], origins: Origins) -> list[Run]:
    """The kernels of a call, sorted by start. Kernels that run others have the time 0.

    The rest of their time is the overhead of profiling the kernels in their bodies: without a profile, the call takes
    about as long as its kernels.
    """
    kernel_runs: list[Run] = []
    #: kernels around the present one, outermost first
    open_: list[int] = []
    where: list[Origin] = []
    for index, event in enumerate(events):
        while open_ and event.ts >= events[open_[-1]].ts + events[open_[-1]].dur:
            open_.pop()
        around = where[open_[-1]] if open_ else None
        where.append(origins.of(event.name, event.args.op_name, around))
        name, args = event.node, event.args
        around_others = args.op_name in _AROUND
        if around_others:
            open_.append(index)
        kernel_runs.append(Run(name, args.op_name, args.provider, where[-1], 0.0 if around_others else event.dur))
    return kernel_runs


def costs(profiled: Sequence[Call]) -> list[Cost]:
    """Every kernel's median over the calls: of nodes that run more than once in a call, of their sum."""
    by_call: list[dict[tuple[str, str, str, Origin], list[float]]] = []
    for call in profiled:
        spent: dict[tuple[str, str, str, Origin], list[float]] = defaultdict(list)
        for run in call.runs:
            spent[run.name, run.op_type, run.provider, run.origin].append(run.us)
        by_call.append(spent)
    every = dict.fromkeys(key for spent in by_call for key in spent)
    return [
        Cost(
            key[1],
            key[2],
            key[3],
            max(len(spent.get(key, ())) for spent in by_call),
            median(sum(spent.get(key, ())) for spent in by_call),
        )
        for key in every
    ]
