"""The proof of a quantized graph: its float32 graph by the criterion, then itself by agreement.

What a quantized graph is made from is proven strictly and on the whole grid: positions, masks, caches and the length
guard are all there, and quantizing touches none of them. The quantized graph then runs at the points of
`posexport.parity.agreement.subset`, and at those that bring every one of its branches to run.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from posexport.parity.agreement.fall import fall
from posexport.parity.agreement.judge import judged
from posexport.parity.agreement.limits import Limits, limits_of
from posexport.parity.agreement.subset import subset
from posexport.parity.branches.coverage import Coverage, cover
from posexport.parity.grid.conditioning import inputs_of
from posexport.parity.grid.grid import grid
from posexport.parity.grid.inputs import token_mask
from posexport.parity.grid.point import GridPoint
from posexport.parity.invariants import check as invariants
from posexport.parity.invariants.judge import judged as change
from posexport.parity.invariants.promise import Promise
from posexport.parity.judge import rejected, skipped
from posexport.parity.prove import misplaced, prove, spread
from posexport.parity.report.points import Invariant, Point
from posexport.parity.report.report import Report
from posexport.parity.run.calls import in_calls, whole
from posexport.parity.run.emulation import widened
from posexport.parity.run.reference import torch_threads
from posexport.parity.run.sample import SampleWriter
from posexport.parity.run.setup import Progress, Setup, heads_of
from posexport.parity.run.subject import RunError, Runner
from posexport.sources.source import Source
from posexport.targets.precision_options import PrecisionOptions
from posexport.targets.precisions import PrecisionName
from posexport.targets.providers import DEFAULT_PROVIDER, provider_named


def agree(
    source: Source,
    model: Path,
    float32: Path,
    options: PrecisionOptions,
    *,
    provider: str = DEFAULT_PROVIDER,
    lengths: Sequence[int] | None = None,
    threads: int = 0,
    progress: Progress | None = None,
    sample: SampleWriter | None = None,
) -> Report:
    """Prove ``float32``, and compare ``model``, which was made from it as ``options`` say, with the definition.

    Of a source of parts both are directories of their files. ``sample`` is filled for the bundle. Raises PosexportError
    as `prove` does.
    """
    how: dict[str, Any] = {"provider": provider, "lengths": lengths, "threads": threads, "progress": progress}
    exact = prove(source, float32, **how)
    return compare(source, model, exact, options, **how, sample=sample)


def compare(
    source: Source,
    model: Path,
    exact: Report | None,
    options: PrecisionOptions,
    *,
    provider: str = DEFAULT_PROVIDER,
    lengths: Sequence[int] | None = None,
    threads: int = 0,
    progress: Progress | None = None,
    sample: SampleWriter | None = None,
) -> Report:
    """The quantized graph alone; ``exact``: the proof of its float32 graph."""
    source = widened(source)
    setup = Setup(
        source=source,
        subject=Runner.of(source, model, [part.spec for part in source.parts], provider=provider, threads=threads),
        provider=provider,
        precision="fp32",  # of the definition that its changes are compared with
        progress=progress or (lambda *_: None),
        heads=heads_of(source.module),
    )
    points = subset(grid(source.envelope, source.inputs, source.plan, lengths=lengths), _added(exact, source))
    coverage = Coverage([])
    room = setup.room()
    if lengths is None:
        coverage = cover(
            source,
            model,
            points,
            provider=provider,
            threads=threads,
            heads=setup.heads,
            memory_limit=room,
            progress=lambda text: setup.progress(0, 0, text),
        )
        points += coverage.added
    fresh = exact is not None and exact.stateful
    limits = limits_of(options)
    accepted = [point for point in points if not point.refusal]
    too_large = setup.too_large(accepted, room)
    fitting = [point for point in accepted if point not in too_large]
    with torch_threads(threads):
        judgements = list(_values(setup, fitting, options.precision, limits, fresh, sample))
        judgements += [rejected(setup, p, foreign=False, fresh=fresh, room=room) for p in points if p.refusal]
        judgements += [skipped(setup, point, reason) for point, reason in too_large.items()]
        kept = list(_invariants(setup, fitting, limits, fresh))
    judgements = [msgspec.structs.replace(point, precision=options.precision) for point in judgements]
    judgements.sort(key=lambda p: (p.length, p.batch, p.memory or 0))
    strays = [] if provider_named(provider).built_in else misplaced(setup, points, model)
    report = Report(
        scope="grid",
        provider=provider,
        precision=options.precision,
        points=judgements,
        # what saturates on random ids does so wherever they stand, the more of them the more
        invariants=[*kept, *(() if options.static else fall(judgements))],
        strays=strays,
        stateful=fresh,
        coverage=coverage.runs(list(too_large)),
        lengths=sorted(set(lengths or ())),
        float32=exact,
    )
    if sample is not None:
        sample.least_cosine = limits.cosine
        sample.finish(report)
    return report


def _added(exact: Report | None, source: Source) -> list[GridPoint]:
    """The points that brought the branches of the float32 graph to run: those of the quantized one are the same."""
    if exact is None:
        return []
    reached = {branch.reached for branch in exact.coverage}
    points = dict.fromkeys(p.point for p in exact.points if p.where in reached)
    return [msgspec.structs.replace(point, convolutions=tuple(source.envelope.convolutions)) for point in points]


def _values(
    setup: Setup,
    points: Sequence[GridPoint],
    precision: PrecisionName,
    limits: Limits,
    fresh: bool,
    sample: SampleWriter | None,
) -> Iterator[Point]:
    """Every output at every point, against the definition in float64."""
    source = setup.source
    truth_of, plain = setup.references(fresh=fresh)
    definition = whole(plain, source)
    if sample is not None:
        sample.choose(points, source)
    for done, point in enumerate(points):
        setup.progress(done, len(points), f"{precision} agrees, {point}")
        feeds = inputs_of(point, source, definition)
        keeps = [token_mask(point, source.inputs, spec) for spec in source.outputs]
        truth = in_calls(truth_of, feeds, source, point.calls if source.envelope.length_dependent else ())
        try:
            outputs, failure = in_calls(setup.subject, feeds, source, point.calls), ""
        except RunError as err:
            outputs, failure = truth, f"ONNX Runtime failed: {err}"
        for spec, y, y64, keep_BT in zip(source.outputs, outputs, truth, keeps, strict=True):
            result = judged(y, y64, spec, keep_BT, limits)
            if failure:
                result = {
                    "output": spec.name,
                    "error": None,
                    "tolerance": limits.error,
                    "verdict": "fail",
                    "note": failure,
                }
            yield Point.at(point, provider=setup.provider, precision=precision, **result)
        if sample is not None:
            sample.add(point, feeds, truth, keeps)
    setup.progress(len(points), len(points), "")


def _invariants(setup: Setup, points: Sequence[GridPoint], limits: Limits, fresh: bool) -> Iterator[Invariant]:
    """What must hold between two runs; that the order of tokens matters is shown by the float32 graph."""
    source = setup.source
    plain = {p.length: p for p in points if not (p.calls or p.numbered)}
    for length in spread(sorted(plain)):
        setup.progress(0, 0, f"invariants at length {length}")
        for name, test in invariants.comparisons(_promise(setup, limits.changes, fresh), plain[length]):
            tolerance = limits.neighbours if name in invariants.OF_BATCH else limits.changes
            promise = _promise(setup, tolerance, fresh)
            tolerances = {spec.name: tolerance for spec in source.outputs}
            yield change(promise, name, length, test, tolerances)


def _promise(setup: Setup, tolerance: float, fresh: bool) -> Promise:
    source = setup.source
    return Promise(
        run=whole(setup.subject, source),
        definition=whole(setup.reference(fresh=fresh), source),
        inputs=source.inputs,
        outputs=source.outputs,
        envelope=source.envelope,
        promises=source.promises,
        precision=setup.precision,
        tolerance=tolerance,
    )
