"""The proof: every point through PyTorch in float64, PyTorch in the model's precision, and ONNX Runtime."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from posexport.bounds import bounds_of
from posexport.errors import PosexportError
from posexport.parity import invariants, memory, steps
from posexport.parity.calls import in_calls, whole
from posexport.parity.criterion import Array, Measured, Precision, floor, measure, tolerance
from posexport.parity.denormals import denormals
from posexport.parity.draw import draw, size_of, token_mask
from posexport.parity.grid import GridPoint, grid
from posexport.parity.locate import locate
from posexport.parity.luck import inputs_of
from posexport.parity.ort import RunError, Runner
from posexport.parity.own import errors as more_errors
from posexport.parity.reference import DTYPES, Reference, fingerprint, torch_threads
from posexport.parity.refusal import refused
from posexport.parity.report import Invariant, Point, Report
from posexport.parity.sample import SampleWriter
from posexport.runtime.placement import placement, strays
from posexport.runtime.providers import execution_provider
from posexport.sources.base import Source

#: done, of how many, what is being done
Progress = Callable[[int, int, str], None]
#: invariants are looked at here, and at the longest length
_INVARIANTS_FROM = 17


@dataclass
class _Job:
    """What stays the same from point to point."""

    source: Source
    runner: Runner
    provider: str
    precision: Precision
    progress: Progress
    limit_bytes: int
    points: list[GridPoint]
    sample: SampleWriter | None
    heads: int = 1
    skipped: dict[GridPoint, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Value:
    """One output at one point, before the verdict."""

    point: GridPoint
    output: str
    own: float
    got: Measured | None
    failure: str = ""


@denormals(kept=False)  # as `posexport.load` leaves a process's first thread
def prove(
    source: Source,
    model: Path | bytes,
    *,
    provider: str = "cpu",
    precision: Precision = "fp32",
    lengths: Sequence[int] | None = None,
    threads: int = 0,
    memory_limit: int | None = None,
    progress: Progress | None = None,
    placement_check: bool | None = None,
    sample: SampleWriter | None = None,
) -> Report:
    """Check ``model`` against its definition over the grid, the invariants, and the provider that ran it.

    Of a source of parts ``model`` is the directory of their files.

    ``memory_limit``: bytes a point may need, by default most of what is free; larger points are skipped, saying so.
    ``placement_check``: look for nodes on another provider; by default wherever the provider is not the CPU.
    ``sample`` is filled for the bundle.
    Raises PosexportError where the model does not fit the source, the provider does not load, a length is impossible.
    """
    runner = Runner(
        model,
        inputs=[spec.name for spec in source.inputs],
        outputs=[spec.name for spec in source.outputs],
        parts=[part.spec for part in source.parts],
        provider=provider,
        threads=threads,
    )
    points = grid(source.envelope, source.inputs, lengths=lengths)
    job = _Job(
        source, runner, provider, precision, progress or (lambda *_: None), 0, points, sample, _heads(source.module)
    )
    with torch_threads(threads):
        values, worst, stateful = _values(job, memory_limit, fresh=False)
        if stateful:
            values, worst, _ = _values(job, memory_limit, fresh=True)
        tolerances = {key: tolerance(precision, key[1], error) for key, error in worst.items()}
        judged = [_judge(job, value, worst, tolerances) for value in values]
        judged += [_refusal(job, point) for point in points if point.refusal]
        judged += [_unchecked(job, point, reason) for point, reason in job.skipped.items()]
        judged.sort(key=lambda p: (p.length, p.batch, p.memory or 0))
        report = Report(
            scope="grid",
            provider=provider,
            precision=precision,
            points=judged,
            invariants=[*_invariants(job, tolerances, stateful), *_steps(job, stateful)],
            strays=_strays(job, model) if placement_check or (placement_check is None and provider != "cpu") else [],
            stateful=stateful,
            lengths=sorted(set(lengths or ())),
        )
        failed = [p for p in judged if p.verdict == "fail" and p.tolerance is not None]
        if failed:
            # the shortest and simplest shows most
            wrong = min(failed, key=lambda p: (p.length, p.padding != "none", p.batch))
            report = msgspec.structs.replace(report, located=locate(source, model, wrong, threads=threads))
    if sample is not None:
        sample.finish(report)
    return report


def _values(
    job: _Job, memory_limit: int | None, *, fresh: bool
) -> tuple[list[_Value], dict[tuple[int, str], float], bool]:
    """All points' errors, PyTorch's largest by length and output, and whether the definition keeps state."""
    source = job.source
    count = len(source.outputs)
    truth = Reference(source.module, torch.float64, outputs=count, fresh=fresh)
    own = Reference(source.module, DTYPES[job.precision], outputs=count, fresh=fresh)
    # asked when the copies exist, so that what is free is free for the points
    job.limit_bytes = int(memory.available() * memory.SHARE) if memory_limit is None else memory_limit
    job.skipped = {}
    values: list[_Value] = []
    worst: dict[tuple[int, str], float] = defaultdict(float)
    taken = [point for point in job.points if not point.refusal and _fits(job, point)]
    if job.sample is not None:
        if not taken:
            reason = next(iter(job.skipped.values()), "the grid is empty")
            raise PosexportError(f"{source.name}: not one point can be checked: {reason}; give a shorter --length")
        job.sample.choose(taken, source)
    first, first_feeds = "", {}
    truth_whole, own_whole = (whole(run, source.inputs, source.outputs) for run in (truth, own))
    for done, point in enumerate(taken):
        job.progress(done, len(taken), str(point))
        feeds = inputs_of(point, source.inputs, source.outputs, own_whole)
        keeps = [token_mask(point, source.inputs, spec) for spec in source.outputs]
        # a schedule that looks at the running length gives other numbers in one call: then the same calls are the truth
        same = point.calls if source.envelope.length_dependent else ()
        y64 = in_calls(truth, feeds, source.inputs, source.outputs, same)
        y_own = in_calls(own, feeds, source.inputs, source.outputs, same)
        if done == 0:
            first, first_feeds = fingerprint([*y64, *y_own]), feeds
        errors = [measure(y, t, s.axes, k) for y, t, s, k in zip(y_own, y64, source.outputs, keeps, strict=True)]
        del y_own  # one precision's outputs at a time: logits over a vocabulary are large
        found: list[Measured | None]
        try:
            got = in_calls(job.runner, feeds, source.inputs, source.outputs, point.calls)
            compared = zip(got, y64, source.outputs, keeps, strict=True)
            found = [_measured(y, t, s.axes, keep_BT, job) for y, t, s, keep_BT in compared]
            failure = ""
        except RunError as err:
            found, failure = [None] * count, f"ONNX Runtime failed: {err}"
        for spec, error, value in zip(source.outputs, errors, found, strict=True):
            # a reference that cannot be measured must not excuse the model
            finite = error.error if np.isfinite(error.error) else 0.0
            worst[point.length, spec.name] = max(worst[point.length, spec.name], finite)
            values.append(_Value(point, spec.name, error.error, value, failure or error.note))
        if job.sample is not None:
            job.sample.add(point, feeds, y64, keeps)
    for point in {point.length: point for point in taken if _plain(point)}.values():
        more = more_errors(point, source.inputs, source.outputs, truth_whole, own_whole, source.envelope.ragged)
        for spec, largest in zip(source.outputs, more, strict=True):
            worst[point.length, spec.name] = max(worst[point.length, spec.name], largest)
    stateful = False
    if taken and not fresh:
        stateful = fingerprint([*truth_whole(first_feeds), *own_whole(first_feeds)]) != first
    job.progress(len(taken), len(taken), "")
    return values, dict(worst), stateful


def _plain(point: GridPoint) -> bool:
    return point.padding == "none" and not (point.calls or point.numbered)


def _measured(
    y: Array, truth: Array, axes: Sequence[str | int], keep_BT: NDArray[np.bool_] | None, job: _Job
) -> Measured:
    if job.precision == "fp32" and y.dtype != np.float32:
        return Measured(np.inf, 0.0, f"{y.dtype} instead of float32")
    return measure(y, truth, axes, keep_BT)


def _fits(job: _Job, point: GridPoint) -> bool:
    need = memory.needed(point, job.source.outputs, job.heads)
    if need > job.limit_bytes:
        job.skipped[point] = (
            f"needs about {memory.readable(need)} of memory, {memory.readable(job.limit_bytes)} may be taken"
        )
    return need <= job.limit_bytes


def _judge(
    job: _Job, value: _Value, worst: Mapping[tuple[int, str], float], tolerances: Mapping[tuple[int, str], float]
) -> Point:
    limit = tolerances[value.point.length, value.output]
    error = None if value.got is None or not np.isfinite(value.got.error) else value.got.error
    note = value.got.note if value.got is not None and value.got.note else value.failure
    return _point(
        job,
        value.point,
        value.output,
        error=error,
        torch_error=value.own if np.isfinite(value.own) else None,
        torch_worst=worst[value.point.length, value.output],
        tolerance=limit,
        verdict="pass" if error is not None and error <= limit else "fail",
        note=note,
    )


def _refusal(job: _Job, point: GridPoint) -> Point:
    source = job.source
    run = partial(in_calls, job.runner, inputs=source.inputs, outputs=source.outputs, calls=point.calls)
    axes = {axis for spec in source.inputs for axis in spec.axes}
    bounds = [b for b in bounds_of(source.envelope) if b.axis in axes and b.broken(size_of(b.axis, point))]
    answer = refused(run, draw(point, source.inputs), bounds)
    return _point(job, point, "", verdict="refused" if answer.good else "fail", note=answer.note)


def _unchecked(job: _Job, point: GridPoint, reason: str) -> Point:
    return _point(job, point, "", verdict="skipped", note=reason)


def _point(job: _Job, point: GridPoint, output: str, **result: object) -> Point:
    numbers = {"error": None, "torch_error": None, "torch_worst": None, "tolerance": None} | result
    return msgspec.convert(
        {
            "batch": point.batch,
            "length": point.length,
            "memory": point.memory,
            "image": point.image,
            "calls": point.calls,
            "numbered": point.numbered,
            "padding": point.padding,
            "provider": job.provider,
            "precision": job.precision,
            "output": output,
            **numbers,
        },
        Point,
    )


def _invariants(job: _Job, tolerances: Mapping[tuple[int, str], float], fresh: bool) -> list[Invariant]:
    source = job.source
    definition = Reference(source.module, DTYPES[job.precision], outputs=len(source.outputs), fresh=fresh)
    promise = invariants.Promise(
        run=whole(job.runner, source.inputs, source.outputs),
        definition=whole(definition, source.inputs, source.outputs),
        inputs=source.inputs,
        outputs=source.outputs,
        envelope=source.envelope,
        shift_invariant=source.shift_invariant,
        padding_invariant=source.padding_invariant,
        reads_first_token=source.reads_first_token,
        causal=source.causal,
        positional=None if source.encoding is None else source.ordered or source.encoding.name != "nope",
    )
    found: list[Invariant] = []
    points = [p for p in job.points if not (p.refusal or p.calls or p.numbered) and p not in job.skipped]
    batched = {p.length: p for p in points if p.batch > 1}
    for length in _spread(sorted(batched)):
        job.progress(0, 0, f"invariants at length {length}")
        at_length = {
            spec.name: tolerances.get((length, spec.name), floor(job.precision, spec.name)) for spec in source.outputs
        }
        found += invariants.check(promise, batched[length], at_length)
    return found


def _steps(job: _Job, fresh: bool) -> Iterator[Invariant]:
    """Greedy steps of a decoder with a cache."""
    source = job.source
    if not source.envelope.cached:
        return iter(())
    job.progress(0, 0, f"{steps.STEPS} greedy steps")
    truth, own = (
        Reference(source.module, dtype, outputs=len(source.outputs), fresh=fresh)
        for dtype in (torch.float64, DTYPES[job.precision])
    )
    return steps.check(
        job.runner,
        truth=truth,
        own=own,
        inputs=source.inputs,
        outputs=source.outputs,
        envelope=source.envelope,
        precision=job.precision,
        provider=job.provider,
    )


def _spread(lengths: Sequence[int]) -> list[int]:
    middle = [length for length in lengths if length >= _INVARIANTS_FROM][:1]
    return sorted({*middle, *lengths[-1:]})


def _strays(job: _Job, model: Path | bytes) -> list[str]:
    """Nodes that ran elsewhere, in words. One run of more than one token shows them all."""
    wanted = execution_provider(job.provider)
    point = next((p for p in job.points if not p.refusal and p.length > 1), job.points[0])
    feeds = job.runner.feeds(draw(point, job.source.inputs))
    parts = job.source.parts
    graphs = [model / part.spec.file for part in parts] if parts and isinstance(model, Path) else [model]
    runs = zip(graphs, job.runner.chain.each(feeds), strict=True)
    placed = [one for graph, given in runs for one in placement(graph, given, job.provider)]
    return [f"a node did not run on {wanted}: {stray}" for stray in strays(placed, wanted)]


def _heads(module: nn.Module) -> int:
    """The most attention heads that any part of the module names, for the estimate of memory."""
    names = ("heads", "num_heads", "num_attention_heads", "n_heads")
    counts = (getattr(part, name, None) for part in module.modules() for name in names)
    return max((count for count in counts if isinstance(count, int)), default=16)
