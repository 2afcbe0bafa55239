"""Which proof a graph gets: the one place where subjects, references, judges, points and checks are put together.

`posexport.convert` and `posexport.verify` both ask here.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from torch import nn

from posexport.bounds import bounds_of
from posexport.parity.agreement.on_grid import CostOnGrid
from posexport.parity.branches.coverage import Branches, cover
from posexport.parity.engine import prove
from posexport.parity.foreign.beyond import Beyond
from posexport.parity.foreign.findings import Findings
from posexport.parity.foreign.fit import Foreign
from posexport.parity.foreign.runner import ForeignRunner
from posexport.parity.grid.grid import grid, switches
from posexport.parity.grid.memory import Budget
from posexport.parity.grid.point import GridPoint
from posexport.parity.invariants.check import Invariants
from posexport.parity.invariants.rollout import GreedySteps
from posexport.parity.judges.guard import Guarded
from posexport.parity.judges.judges import Criterion, UserTolerance
from posexport.parity.locate.locate import Location
from posexport.parity.placement import Placement
from posexport.parity.positions.invariant import Positions
from posexport.parity.proof import Check, Progress, Proof
from posexport.parity.range.check import Range
from posexport.parity.range.log import RangeLog
from posexport.parity.references.definition import DefinitionReference
from posexport.parity.references.precision_copy import torch_threads
from posexport.parity.report.report import Report
from posexport.parity.sample.proof import Settled, Shipped
from posexport.parity.sample.writer import SampleWriter
from posexport.parity.subjects.half import HALVES, computes, emulated_if, loads, widened, widened_parts
from posexport.parity.subjects.runner import Make, Runner
from posexport.sources.source import Source
from posexport.targets.precisions import FP32, PRECISIONS, PrecisionName
from posexport.targets.providers import DEFAULT_PROVIDER, provider_named

#: float16 has no integers above 2048 that are odd, bfloat16 above 256: positions in it collide
LONG = (1024, 2048, 3072, 4096)
#: bfloat16 has the range of float32
WATCHED: PrecisionName = "fp16"


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What may be asked of a proof.

    Attributes:
        precision: that the graph is stored in.
        emulate: prove a copy that computes in float32 and rounds to this precision; of a float32 graph everything is.
        lengths: in place of the grid's.
        memory_limit: bytes a point may need, by default most of what is free; larger points are skipped, saying so.
        tolerance: the largest error that passes, in place of the criterion.
        sample: is filled for the bundle.
    """

    provider: str = DEFAULT_PROVIDER
    precision: PrecisionName = FP32.name
    emulate: PrecisionName | None = None
    lengths: Sequence[int] | None = None
    threads: int = 0
    memory_limit: int | None = None
    tolerance: float | None = None
    progress: Progress = field(default=lambda *_: None)
    sample: SampleWriter | None = None

    @property
    def computed(self) -> PrecisionName:
        """What the proof's graph computes in."""
        return self.emulate or PRECISIONS[self.precision].dtype.precision

    @property
    def copied(self) -> bool:
        """Whether a copy is proven that rounds: it is asked for, or the provider has no arithmetic of the precision."""
        return self.emulate is not None or not computes(self.provider, self.computed)

    @property
    def everything(self) -> bool:
        """Whether that copy rounds all values of a float32 graph."""
        return self.copied and self.precision == FP32.name


def prove_model(source: Source, model: Path | bytes, wishes: Wishes, foreign: Foreign | None = None) -> Report:
    """The report on ``model``, of a source of parts the directory of their files.

    Raises PosexportError where the model does not fit the source, the provider does not load, a length is impossible.
    """
    with chosen(source, model, wishes, foreign) as proof:
        return prove(proof)


@contextmanager
def chosen(source: Source, model: Path | bytes, wishes: Wishes, foreign: Foreign | None = None) -> Iterator[Proof]:
    """The proof of ``model``, and the copies that it needs for as long as it runs.

    ``foreign``: ``model`` is another tool's, and is fed and judged so; its source then takes the place of ``source``.
    """
    source = widened(source if foreign is None else foreign.source)
    whole = source
    if PRECISIONS[wishes.precision].quantized and wishes.tolerance is None:
        from posexport.parity.quantized import as_stored

        source = as_stored(source, model)
    with ExitStack() as held:
        rounded = wishes.computed if wishes.copied else None
        shipped_parts = [part.spec for part in source.parts]
        graph = held.enter_context(emulated_if(rounded, model, shipped_parts, everywhere=wishes.everything))
        if wishes.copied:
            parts = zip(source.parts, widened_parts(shipped_parts), strict=True)
            source = replace(source, parts=[replace(part, spec=spec) for part, spec in parts])
        held.enter_context(torch_threads(wishes.threads))
        opened = partial(_subject, foreign=foreign, provider=wishes.provider, threads=wishes.threads)
        log = RangeLog(wishes.threads) if wishes.computed == WATCHED else None
        subject = opened(source, graph, make=log.session if log is not None and wishes.copied else None)
        if wishes.copied and wishes.sample is None:
            wishes = replace(wishes, sample=SampleWriter())
        reference = DefinitionReference(source, wishes.computed, wishes.sample)
        budget = Budget(outputs=source.outputs, heads=heads_of(whole.module), limit=wishes.memory_limit)
        further = source.plan.further or (LONG if wishes.computed in HALVES else ())
        points = grid(
            source.envelope, source.inputs, source.plan, lengths=wishes.lengths, further=budget.further(further)
        )
        checks: list[Check] = [Invariants(reference), GreedySteps(reference, subject)]
        if not provider_named(wishes.provider).built_in:
            checks.append(Placement(subject, graph, tuple(part.spec for part in source.parts)))
        if log is not None:
            at_some = None if wishes.copied else held.enter_context(_emulated(source, model, log, opened))
            checks.append(Range(log, at_some))
        if foreign is not None:
            checks.append(Findings(source.envelope.limit))
        else:
            checks += _of_own_graphs(source, whole, model, graph, points, wishes, budget)
        if wishes.sample is not None:
            checks.append(Settled(wishes.sample))
            if wishes.copied and not wishes.everything and loads(wishes.provider, wishes.computed):
                checks.append(Shipped(wishes.sample, lambda: opened(whole, model)))
        criterion = Criterion(wishes.computed, switches(source.envelope))
        judge = criterion if wishes.tolerance is None else UserTolerance(wishes.computed, wishes.tolerance)
        bounds = bounds_of(source.envelope)
        yield Proof(
            model=source,
            subject=subject,
            reference=reference,
            judge=judge,
            rejection=Guarded(source, bounds)
            if foreign is None
            else Beyond(
                model=source,
                bounds=bounds,
                definition=lambda: (reference.truth, reference.baseline),
                values=judge,
                budget=budget,
            ),
            points=points,
            checks=checks,
            about=Report(
                scope="grid",
                provider=wishes.provider,
                precision=wishes.emulate or wishes.precision,
                points=[],
                lengths=sorted(set(wishes.lengths or ())),
                tolerance=wishes.tolerance,
                emulated=wishes.copied,
            ),
            budget=budget,
            progress=wishes.progress,
        )


def _of_own_graphs(
    source: Source,
    whole: Source,
    model: Path | bytes,
    graph: Path | bytes,
    points: list[GridPoint],
    wishes: Wishes,
    budget: Budget,
) -> Iterator[Check]:
    """What is known of graphs that posexport made; ``points`` get those that branches need beside them.

    Another tool's graph does not say which of its nodes are which module.
    """
    if wishes.lengths is None:
        coverage = cover(
            source,
            graph,
            points,
            provider=wishes.provider,
            threads=wishes.threads,
            budget=budget,
            progress=lambda text: wishes.progress(0, 0, text),
        )
        points += coverage.added
        yield Branches(coverage)
    yield Location(source, graph, wishes.threads)
    if wishes.computed in HALVES and not wishes.everything:
        yield Positions(whole, model)
    if PRECISIONS[wishes.precision].quantized:
        yield CostOnGrid(whole)


def _subject(
    source: Source,
    model: Path | bytes,
    *,
    foreign: Foreign | None,
    provider: str,
    threads: int,
    make: Make | None = None,
) -> Runner:
    if foreign is not None:
        return ForeignRunner(foreign, model, provider=provider, threads=threads, make=make)
    parts = [part.spec for part in source.parts]
    return Runner.of(source, model, parts, provider=provider, threads=threads, make=make)


@contextmanager
def _emulated(source: Source, model: Path | bytes, log: RangeLog, opened: Callable[..., Runner]) -> Iterator[Runner]:
    """A copy that rounds to float16 on the CPU, for a graph whose provider computes in it."""
    parts = [part.spec for part in source.parts]
    with emulated_if(WATCHED, model, parts) as graph:
        widened_specs = zip(source.parts, widened_parts(parts), strict=True)
        copy = replace(source, parts=[replace(part, spec=spec) for part, spec in widened_specs])
        yield opened(copy, graph, make=log.session)


def heads_of(module: nn.Module) -> int:
    """The most attention heads that any part of the module names, for the estimate of memory."""
    names = ("heads", "num_heads", "num_attention_heads", "n_heads")
    counts = (getattr(part, name, None) for part in module.modules() for name in names)
    return max((count for count in counts if isinstance(count, int)), default=Budget.heads)
