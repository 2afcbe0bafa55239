"""The proof: every point through PyTorch in float64, PyTorch in the model's precision, and ONNX Runtime."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import torch

from posexport.parity import emulation
from posexport.parity.branches.coverage import Coverage, cover
from posexport.parity.criterion import floor
from posexport.parity.criterion import tolerance as allowed
from posexport.parity.foreign.fit import Foreign
from posexport.parity.foreign.runner import ForeignRunner, conclusion, findings
from posexport.parity.grid import memory
from posexport.parity.grid.grid import grid, switches
from posexport.parity.grid.inputs import draw
from posexport.parity.grid.point import GridPoint
from posexport.parity.invariants import check as invariants
from posexport.parity.invariants import rollout
from posexport.parity.invariants.promise import Promise
from posexport.parity.judge import judged, rejected, skipped
from posexport.parity.locate.locate import locate
from posexport.parity.positions.invariant import with_positions
from posexport.parity.report import median
from posexport.parity.report.points import Invariant
from posexport.parity.report.report import Report
from posexport.parity.run.calls import whole
from posexport.parity.run.emulation import HALVES, computes, widened, widened_parts
from posexport.parity.run.points import Measurements, measure_points
from posexport.parity.run.reference import torch_threads
from posexport.parity.run.sample import SampleWriter
from posexport.parity.run.setup import Progress, Setup, heads_of
from posexport.parity.run.subject import Runner
from posexport.runtime.placement import placement, strays
from posexport.sources.source import Source
from posexport.targets.dtypes import MODEL_DTYPE
from posexport.targets.precisions import PrecisionName
from posexport.targets.providers import DEFAULT_PROVIDER, provider_named

#: invariants are looked at here, and at the longest length
_INVARIANTS_FROM = 17
#: float16 has no integers above 2048 that are odd, bfloat16 above 256: positions in it collide
LONG = (1024, 2048, 3072, 4096)
#: by length and output
_Tolerances = Mapping[tuple[int, str], float]


def prove(
    source: Source,
    model: Path | bytes,
    *,
    provider: str = DEFAULT_PROVIDER,
    precision: PrecisionName = MODEL_DTYPE.precision,
    lengths: Sequence[int] | None = None,
    threads: int = 0,
    memory_limit: int | None = None,
    tolerance: float | None = None,
    progress: Progress | None = None,
    placement_check: bool | None = None,
    sample: SampleWriter | None = None,
    foreign: Foreign | None = None,
    emulated: bool = False,
) -> Report:
    """Check ``model`` against its definition over the grid, the invariants, and the provider that ran it.

    Of a source of parts ``model`` is the directory of their files.

    ``memory_limit``: bytes a point may need, by default most of what is free; larger points are skipped, saying so.
    ``tolerance``: the largest error that passes, in place of the criterion; medians are then not judged.
    ``placement_check``: look for nodes on another provider; by default wherever the provider is not the CPU.
    ``sample`` is filled for the bundle.
    ``foreign``: ``model`` is another tool's, and is fed and judged so; ``source`` must be its source.
    ``emulated``: ``model`` is a copy in float32 that rounds to ``precision`` (`posexport.precision.emulate`); where
    the provider has no arithmetic of ``precision`` such a copy of ``model`` is made and proven, and ``model`` itself
    runs at some points if the provider loads it.
    Raises PosexportError where the model does not fit the source, the provider does not load, a length is impossible.
    """
    if not emulated and not computes(provider, precision):
        again = partial(
            prove,
            source,
            provider=provider,
            precision=precision,
            lengths=lengths,
            threads=threads,
            memory_limit=memory_limit,
            tolerance=tolerance,
            progress=progress,
            foreign=foreign,
        )
        report = emulation.prove(
            again,
            model,
            [part.spec for part in source.parts],
            provider=provider,
            precision=precision,
            threads=threads,
            sample=sample,
        )
        return report if foreign is not None else with_positions(report, source, model)
    source = widened(source)
    if emulated:
        specs = widened_parts([part.spec for part in source.parts])
        source = replace(
            source, parts=[replace(part, spec=spec) for part, spec in zip(source.parts, specs, strict=True)]
        )
    setup = Setup(
        source=source,
        subject=_subject(source, model, foreign, provider=provider, threads=threads),
        provider=provider,
        precision=precision,
        progress=progress or (lambda *_: None),
        heads=heads_of(source.module),
        memory_limit=memory_limit,
        tolerance=tolerance,
    )
    heads, room = setup.heads, setup.room()
    longer = source.plan.further or (LONG if precision in HALVES else ())
    further = memory.further(longer, source.outputs, heads, room)
    points = grid(source.envelope, source.inputs, source.plan, lengths=lengths, further=further)
    coverage = Coverage([])
    if lengths is None and foreign is None:
        coverage = cover(
            source,
            model,
            points,
            provider=provider,
            threads=threads,
            heads=heads,
            memory_limit=room,
            progress=lambda text: setup.progress(0, 0, text),
        )
        points += coverage.added
    with torch_threads(threads):
        measured = measure_points(setup, points, sample)
        if fresh := measured.stateful:
            measured = measure_points(setup, points, sample, fresh=True)
        tolerances = {
            key: allowed(precision, key[1], error, chosen=tolerance) for key, error in measured.baseline.items()
        }
        judgements = [judged(setup, value, measured.baseline, tolerances) for value in measured.values]
        judgements += [
            rejected(setup, point, foreign=foreign is not None, fresh=fresh, room=measured.room)
            for point in points
            if point.refusal
        ]
        judgements += [skipped(setup, point, reason) for point, reason in measured.skipped.items()]
        judgements.sort(key=lambda p: (p.length, p.batch, p.memory or 0))
        if placement_check is None:
            placement_check = not provider_named(provider).built_in
        report = Report(
            scope="grid",
            provider=provider,
            precision=precision,
            points=judgements,
            medians=median.check(judgements, switches(source.envelope)) if tolerance is None else [],
            invariants=[*_invariants(setup, points, measured, tolerances, fresh), *_rollout(setup, fresh)],
            strays=misplaced(setup, points, model) if placement_check else [],
            stateful=fresh,
            emulated=emulated,
            coverage=coverage.runs(list(measured.skipped)),
            lengths=sorted(set(lengths or ())),
            tolerance=tolerance,
        )
        if foreign is not None:
            shown = conclusion(judgements, source.envelope.limit, chosen=lengths is not None)
            report = msgspec.structs.replace(report, findings=findings(judgements), conclusion=shown)
        failed = [p for p in judgements if p.verdict == "fail" and p.tolerance is not None]
        if failed and foreign is None:  # another tool's graph does not say which of its nodes are which module
            # the shortest and simplest shows most
            wrong = min(failed, key=lambda p: (p.length, p.padding != "none", p.batch))
            report = msgspec.structs.replace(report, located=locate(source, model, wrong, threads=threads))
    if precision in HALVES and not emulated and foreign is None:
        report = with_positions(report, source, model)
    if sample is not None:
        sample.finish(report)
    return report


def _subject(source: Source, model: Path | bytes, foreign: Foreign | None, *, provider: str, threads: int) -> Runner:
    if foreign is not None:
        return ForeignRunner(foreign, model, provider=provider, threads=threads)
    return Runner.of(source, model, [part.spec for part in source.parts], provider=provider, threads=threads)


def _invariants(
    setup: Setup, points: Sequence[GridPoint], measured: Measurements, tolerances: _Tolerances, fresh: bool
) -> Iterator[Invariant]:
    source = setup.source
    # where the source cannot say whether it has positions, or half precision cannot show it, the definition in float64
    # does
    asked = source.kind == "python" or setup.precision in HALVES
    exact = whole(setup.reference(torch.float64, fresh=fresh), source) if asked else None
    promise = Promise(
        run=whole(setup.subject, source),
        definition=whole(setup.reference(fresh=fresh), source),
        inputs=source.inputs,
        outputs=source.outputs,
        envelope=source.envelope,
        promises=source.promises,
        precision=setup.precision,
        tolerance=setup.tolerance,
        exact=exact,
    )
    plain = [p for p in points if not (p.refusal or p.calls or p.numbered) and p not in measured.skipped]
    batched = {point.length: point for point in plain if point.batch > 1}
    for length in spread(sorted(batched)):
        setup.progress(0, 0, f"invariants at length {length}")
        at_length = {
            spec.name: tolerances.get((length, spec.name), setup.tolerance or floor(setup.precision, spec.name))
            for spec in source.outputs
        }
        yield from invariants.check(promise, batched[length], at_length)


def _rollout(setup: Setup, fresh: bool) -> Iterator[Invariant]:
    """Greedy decode steps of a decoder with a cache."""
    source = setup.source
    if not source.envelope.cached:
        return iter(())
    setup.progress(0, 0, f"{rollout.STEPS} greedy steps")
    return rollout.check(setup, *setup.references(fresh=fresh))


def spread(lengths: Sequence[int]) -> list[int]:
    middle = [length for length in lengths if length >= _INVARIANTS_FROM][:1]
    return sorted({*middle, *lengths[-1:]})


def misplaced(setup: Setup, points: Sequence[GridPoint], model: Path | bytes) -> list[str]:
    """Nodes on the wrong provider, in words. One run of more than one token shows them all."""
    provider = provider_named(setup.provider).ort_name
    point = next((p for p in points if not p.refusal and p.length > 1), points[0])
    feeds = setup.subject.feeds(draw(point, setup.source.inputs))
    parts = setup.source.parts
    graphs = [model / part.spec.file for part in parts] if parts and isinstance(model, Path) else [model]
    runs = zip(graphs, setup.subject.chain.each(feeds), strict=True)
    placed = [node for graph, arrays in runs for node in placement(graph, arrays, setup.provider)]
    return [f"a node did not run on {provider}: {stray}" for stray in strays(placed, provider)]
