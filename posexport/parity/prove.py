"""The proof: every point through PyTorch in float64, PyTorch in the model's precision, and ONNX Runtime."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from posexport.bounds import bounds_of
from posexport.errors import PosexportError
from posexport.parity import invariants, median, memory, steps
from posexport.parity.baseline_error import errors as more_errors
from posexport.parity.calls import in_calls, whole
from posexport.parity.coverage import Coverage, cover
from posexport.parity.criterion import Array, Measured, floor, measure
from posexport.parity.criterion import tolerance as allowed
from posexport.parity.draw import draw, size_of, token_mask
from posexport.parity.foreign import Foreign
from posexport.parity.foreign_run import Beyond, ForeignRunner, conclusion, findings
from posexport.parity.grid import GridPoint, grid
from posexport.parity.locate import locate
from posexport.parity.luck import inputs_of
from posexport.parity.ort import RunError, Runner
from posexport.parity.reference import Reference, fingerprint, torch_threads
from posexport.parity.refusal import refused
from posexport.parity.report import Invariant, Point, Report
from posexport.parity.sample import SampleWriter
from posexport.parity.switches import switches
from posexport.parity.user_values import check_finite
from posexport.runtime.placement import placement, strays
from posexport.sources.source import Source
from posexport.targets.dtypes import BY_PRECISION, MODEL_DTYPE, Precision
from posexport.targets.providers import DEFAULT_PROVIDER, provider_named

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
    foreign: Foreign | None = None
    #: the user's, in place of the criterion
    tolerance: float | None = None
    skipped: dict[GridPoint, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Value:
    """One output at one point, before the verdict."""

    point: GridPoint
    output: str
    own: float
    got: Measured | None
    failure: str = ""


def prove(
    source: Source,
    model: Path | bytes,
    *,
    provider: str = DEFAULT_PROVIDER,
    precision: Precision = MODEL_DTYPE.precision,
    lengths: Sequence[int] | None = None,
    threads: int = 0,
    memory_limit: int | None = None,
    tolerance: float | None = None,
    progress: Progress | None = None,
    placement_check: bool | None = None,
    sample: SampleWriter | None = None,
    foreign: Foreign | None = None,
) -> Report:
    """Check ``model`` against its definition over the grid, the invariants, and the provider that ran it.

    Of a source of parts ``model`` is the directory of their files.

    ``memory_limit``: bytes a point may need, by default most of what is free; larger points are skipped, saying so.
    ``tolerance``: the largest error that passes, in place of the criterion; medians are then not judged.
    ``placement_check``: look for nodes on another provider; by default wherever the provider is not the CPU.
    ``sample`` is filled for the bundle.
    ``foreign``: ``model`` is another tool's, and is fed and judged so; ``source`` must be its source.
    Raises PosexportError where the model does not fit the source, the provider does not load, a length is impossible.
    """
    if foreign is not None:
        runner: Runner = ForeignRunner(foreign, model, provider=provider, threads=threads)
    else:
        runner = Runner(
            model,
            inputs=[spec.name for spec in source.inputs],
            outputs=[spec.name for spec in source.outputs],
            parts=[part.spec for part in source.parts],
            provider=provider,
            threads=threads,
        )
    heads = _heads(source.module)
    further = memory.further(source.further_lengths, source.outputs, heads, _memory_limit(memory_limit))
    points = grid(source.envelope, source.inputs, lengths=lengths, further=further)
    tell = progress or (lambda *_: None)
    coverage = Coverage([])
    if lengths is None and foreign is None:
        coverage = cover(
            source,
            model,
            points,
            provider=provider,
            threads=threads,
            heads=heads,
            memory_limit=_memory_limit(memory_limit),
            progress=lambda text: tell(0, 0, text),
        )
        points += coverage.added
    job = _Job(source, runner, provider, precision, tell, 0, points, sample, heads, foreign, tolerance)
    with torch_threads(threads):
        values, worst, stateful = _values(job, memory_limit, fresh=False)
        if stateful:
            values, worst, _ = _values(job, memory_limit, fresh=True)
        tolerances = {key: allowed(precision, key[1], error, chosen=tolerance) for key, error in worst.items()}
        judged = [_judge(job, value, worst, tolerances) for value in values]
        judged += [_refusal(job, point, stateful) for point in points if point.refusal]
        judged += [_unchecked(job, point, reason) for point, reason in job.skipped.items()]
        judged.sort(key=lambda p: (p.length, p.batch, p.memory or 0))
        if placement_check is None:
            placement_check = not provider_named(provider).built_in
        report = Report(
            scope="grid",
            provider=provider,
            precision=precision,
            points=judged,
            medians=median.check(judged, switches(source.envelope)) if tolerance is None else [],
            invariants=[*_invariants(job, tolerances, stateful), *_steps(job, stateful)],
            strays=_strays(job, model) if placement_check else [],
            stateful=stateful,
            coverage=coverage.runs(list(job.skipped)),
            lengths=sorted(set(lengths or ())),
            tolerance=tolerance,
        )
        if foreign is not None:
            shown = conclusion(judged, source.envelope.limit, chosen=lengths is not None)
            report = msgspec.structs.replace(report, findings=findings(judged), conclusion=shown)
        failed = [p for p in judged if p.verdict == "fail" and p.tolerance is not None]
        if failed and foreign is None:  # another tool's graph does not say which of its nodes are which module
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
    own = Reference(source.module, BY_PRECISION[job.precision].torch, outputs=count, fresh=fresh)
    # asked when the copies exist, so that what is free is free for the points
    job.limit_bytes = _memory_limit(memory_limit)
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
        job.progress(done, len(taken), f"proving, {point}")
        feeds = inputs_of(point, source.inputs, source.outputs, own_whole)
        keeps = [token_mask(point, source.inputs, spec) for spec in source.outputs]
        # a schedule that looks at the running length gives other numbers in one call: then the same calls are the truth
        same = point.calls if source.envelope.length_dependent else ()
        y64 = in_calls(truth, feeds, source.inputs, source.outputs, same)
        y_own = in_calls(own, feeds, source.inputs, source.outputs, same)
        if done == 0:
            first, first_feeds = fingerprint([*y64, *y_own]), feeds
        errors = [measure(y, t, s.axes, k) for y, t, s, k in zip(y_own, y64, source.outputs, keeps, strict=True)]
        check_finite(source, point, errors)
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


def _memory_limit(given: int | None) -> int:
    return int(memory.available() * memory.SHARE) if given is None else given


def _plain(point: GridPoint) -> bool:
    return point.padding == "none" and not (point.calls or point.numbered)


def _measured(
    y: Array, truth: Array, axes: Sequence[str | int], keep_BT: NDArray[np.bool_] | None, job: _Job
) -> Measured:
    if job.precision == MODEL_DTYPE.precision and y.dtype != MODEL_DTYPE.name:
        return Measured(np.inf, 0.0, f"{y.dtype} instead of {MODEL_DTYPE.name}")
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


def _refusal(job: _Job, point: GridPoint, fresh: bool) -> Point:
    source = job.source
    run = partial(in_calls, job.runner, inputs=source.inputs, outputs=source.outputs, calls=point.calls)
    axes = {axis for spec in source.inputs for axis in spec.axes}
    bounds = [b for b in bounds_of(source.envelope) if b.axis in axes and b.broken(size_of(b.axis, point))]
    feeds = draw(point, source.inputs)
    if job.foreign is None:
        answer = refused(run, feeds, bounds)
    else:
        beyond = Beyond(
            run=run,
            definition=lambda: [
                partial(in_calls, reference, inputs=source.inputs, outputs=source.outputs, calls=point.calls)
                for reference in _references(job, fresh)
            ],
            outputs=source.outputs,
            precision=job.precision,
            tolerance=job.tolerance,
        )
        fits = memory.needed(point, source.outputs, job.heads) <= job.limit_bytes
        answer = beyond.judge(feeds, " or ".join(bound.message for bound in bounds), fits=fits)
    verdict = "fail" if not answer.good else "pass" if answer.answered else "rejected"
    return _point(job, point, "", verdict=verdict, note=answer.note)


def _unchecked(job: _Job, point: GridPoint, reason: str) -> Point:
    return _point(job, point, "", verdict="skipped", note=reason)


def _point(job: _Job, point: GridPoint, output: str, **result: Any) -> Point:
    return Point.at(point, provider=job.provider, precision=job.precision, output=output, **result)


def _invariants(job: _Job, tolerances: Mapping[tuple[int, str], float], fresh: bool) -> list[Invariant]:
    source = job.source
    definition = Reference(source.module, BY_PRECISION[job.precision].torch, outputs=len(source.outputs), fresh=fresh)
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
        precision=job.precision,
        tolerance=job.tolerance,
        positional=source.positional,
        exact=_exact(source, fresh) if source.kind == "python" else None,
    )
    found: list[Invariant] = []
    points = [p for p in job.points if not (p.refusal or p.calls or p.numbered) and p not in job.skipped]
    batched = {p.length: p for p in points if p.batch > 1}
    for length in _spread(sorted(batched)):
        job.progress(0, 0, f"invariants at length {length}")
        at_length = {
            spec.name: tolerances.get((length, spec.name), job.tolerance or floor(job.precision, spec.name))
            for spec in source.outputs
        }
        found += invariants.check(promise, batched[length], at_length)
    return found


def _exact(source: Source, fresh: bool) -> invariants.Run:
    """The definition in float64, where the source cannot say whether it has positions."""
    truth = Reference(source.module, torch.float64, outputs=len(source.outputs), fresh=fresh)
    return whole(truth, source.inputs, source.outputs)


def _steps(job: _Job, fresh: bool) -> Iterator[Invariant]:
    """Greedy steps of a decoder with a cache."""
    source = job.source
    if not source.envelope.cached:
        return iter(())
    job.progress(0, 0, f"{steps.STEPS} greedy steps")
    truth, own = _references(job, fresh)
    return steps.check(
        job.runner,
        truth=truth,
        own=own,
        inputs=source.inputs,
        outputs=source.outputs,
        envelope=source.envelope,
        precision=job.precision,
        provider=job.provider,
        tolerance=job.tolerance,
    )


def _references(job: _Job, fresh: bool) -> tuple[Reference, Reference]:
    """The definition in float64 and in the model's precision."""
    module, count = job.source.module, len(job.source.outputs)
    return (
        Reference(module, torch.float64, outputs=count, fresh=fresh),
        Reference(module, BY_PRECISION[job.precision].torch, outputs=count, fresh=fresh),
    )


def _spread(lengths: Sequence[int]) -> list[int]:
    middle = [length for length in lengths if length >= _INVARIANTS_FROM][:1]
    return sorted({*middle, *lengths[-1:]})


def _strays(job: _Job, model: Path | bytes) -> list[str]:
    """Nodes that ran elsewhere, in words. One run of more than one token shows them all."""
    wanted = provider_named(job.provider).ort_name
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
