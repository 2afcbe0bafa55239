"""Which proof a graph gets: the one place that puts subjects, references, judges, points and checks together.

`posexport.convert` and `posexport.verify` both take their proofs from here. What few proofs have (decode steps, other
tools' graphs, quantized weights, a user's module) is imported where it is chosen.
"""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from posexport.base.bounds import bounds_of
from posexport.base.spec import NUM_LOGITS, SEQUENCE
from posexport.base.system.freed_memory import trim
from posexport.base.targets.precisions import FP32, PRECISIONS, PrecisionName, QuantizerName
from posexport.base.targets.providers import DEFAULT_PROVIDER, provider_named
from posexport.encodings.encoding import Encoding
from posexport.models.forward_decoder import ForwardDecoder
from posexport.proof.agreement.on_grid import CostOnGrid
from posexport.proof.branches.coverage import Branches, Coverage, cover
from posexport.proof.engine import prove
from posexport.proof.grid.grid import grid, switches, with_ends
from posexport.proof.grid.point import FURTHER_OF_MODULES, Budget, GridPoint
from posexport.proof.grid.turns import points_of_turns
from posexport.proof.half_range import Range, RangeLog
from posexport.proof.invariants.check import Invariants
from posexport.proof.judges import Criterion, Guarded, UserTolerance
from posexport.proof.locate.locate import Location
from posexport.proof.percent import Percent, stages
from posexport.proof.proof import Check, Judge, Progress, Proof, Rejection
from posexport.proof.quantized.records import StoredError
from posexport.proof.references.definition import DefinitionReference
from posexport.proof.references.precision_copy import torch_threads
from posexport.proof.report.report import Report
from posexport.proof.sample.check import FinishSample, Shipped
from posexport.proof.sample.writer import SampleWriter
from posexport.proof.subjects.half import HALVES, computes, emulated_if, loads, widened, widened_parts
from posexport.proof.subjects.runner import Make, Runner
from posexport.sources import memory_mapped
from posexport.sources.lazy_parameters import materialize
from posexport.sources.source import Source

if TYPE_CHECKING:
    from posexport.proof.foreign.fit import Foreign
    from posexport.proof.quantized.match import Matches

#: bfloat16 has the range of float32
WATCHED: PrecisionName = "fp16"
#: float16 has no integers above 2048 that are odd, bfloat16 above 256: positions in it collide
LONG = (1024, 2048, 3072, 4096)


@dataclass(frozen=True, kw_only=True)
class ProofOptions:
    """The options of a proof.

    Attributes:
        precision: that the graph is stored in.
        emulate: prove a copy that computes in float32 and rounds to this precision; of a float32 graph everything is.
        quantizer: how the weights of the file were rounded; None: nobody says, as of another tool's file.
        matches: by file, what the weights of a full model are, which were compared (`posexport.proof.full_model`).
        lengths: in place of the grid's.
        memory_limit: bytes a point may need, by default most of the free memory; larger points are reported as skipped.
        tolerance: the largest error that passes, in place of the criterion.
        sample: is filled for the bundle.
        agreement: also report what quantizing costs on the grid (`CostOnGrid`).
        some: chooses among the grid's points; then only their values are proven, and where nodes ran.
        reference_device: PyTorch's name of where the definition computes.
        provider_options: of the graph's sessions, as `posexport.load` takes them.
    """

    provider: str = DEFAULT_PROVIDER
    precision: PrecisionName = FP32.name
    emulate: PrecisionName | None = None
    quantizer: QuantizerName | None = None
    matches: "Mapping[str, Matches] | None" = None
    lengths: Sequence[int] | None = None
    threads: int = 0
    memory_limit: int | None = None
    tolerance: float | None = None
    progress: Progress = field(default=lambda *_: None)
    sample: SampleWriter | None = None
    agreement: bool = True
    some: Callable[[list[GridPoint]], list[GridPoint]] | None = None
    reference_device: str = "cpu"
    provider_options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def computed(self) -> PrecisionName:
        """What the proof's graph computes in."""
        return self.emulate or self.by_session or PRECISIONS[self.precision].computed

    @property
    def by_session(self) -> PrecisionName | None:
        """The precision that the user's provider options let float32 operators be computed in; None: the graph's."""
        precision = provider_named(self.provider).precision(self.provider_options)
        return precision if PRECISIONS[self.precision].computed == FP32.name else None

    @property
    def copied(self) -> bool:
        """Whether an emulated copy is proven: on request, or if the provider has no arithmetic of the precision."""
        return self.emulate is not None or (self.by_session is None and not computes(self.provider, self.computed))

    @property
    def everything(self) -> bool:
        """Whether that copy rounds all values of a float32 graph."""
        return self.copied and self.precision == FP32.name


def prove_model(source: Source, model: Path | bytes, options: ProofOptions, foreign: "Foreign | None" = None) -> Report:
    """The report on ``model``, of a source of parts the directory of their files.

    Raises PosexportError where the model does not fit the source, the provider does not load, a length is impossible.
    """
    materialize(source.module.parameters())  # the grid reads them many times
    try:
        with proof_of(source, model, options, foreign) as proof:
            return prove(proof)
    except StoredError as err:  # a wrong bundle: no point needs to run
        return msgspec.structs.replace(about(options), findings=[str(err)])


@contextmanager
def proof_of(
    source: Source, model: Path | bytes, options: ProofOptions, foreign: "Foreign | None" = None
) -> Iterator[Proof]:
    """The proof of ``model``, and the copies that it needs for as long as it runs.

    ``foreign``: ``model`` is another tool's, and is fed and judged so; its source then takes the place of ``source``.
    """
    widened_source = widened(source if foreign is None else foreign.source)
    rounded = options.computed if options.copied else None
    emulation = emulated_if(rounded, model, widened_source.part_specs, everywhere=options.everything)
    with torch_threads(options.threads), emulation as graph:
        yield _Choice(widened_source, model, graph, options, foreign).proof()


class _Choice:
    """The parts of a proof of ``model``; ``graph`` is what runs: ``model``, or an emulated copy."""

    def __init__(
        self,
        widened_source: Source,
        model: Path | bytes,
        graph: Path | bytes,
        options: ProofOptions,
        foreign: "Foreign | None",
    ) -> None:
        self._widened_source, self._model, self._graph, self._foreign = widened_source, model, graph, foreign
        # the graph that ships is compared with a sample too, where a copy is proven
        self._options = replace(options, sample=options.sample or (SampleWriter() if options.copied else None))
        self._source = self._stored()
        self._log = RangeLog(options.threads) if options.computed == WATCHED else None
        self._budget = Budget(
            outputs=widened_source.outputs,
            heads=heads_of(widened_source),
            limit=options.memory_limit,
            call_bytes=widened_source.call_bytes,
        )
        if widened_source.kind == "python":
            self._budget = replace(self._budget, easily=FURTHER_OF_MODULES)

    def proof(self) -> Proof:
        """Returns the proof with its options applied."""
        options, source = self._options, self._source
        points = self._grid()
        if options.some is not None:
            points = options.some(points)
        self._options = options = replace(options, progress=Percent(options.progress, stages(points)))
        # before there are sessions and copies of the module, which the search for branches does not need
        coverage = self._covered(points)
        checks = list(self._checks(coverage))
        judge = self._judge()
        return Proof(
            model=source,
            subject=self._subject,
            release=self._subject.release,
            reference=self._reference,
            judge=judge,
            rejection=self._rejection(judge),
            points=points,
            checks=checks,
            about=msgspec.structs.replace(about(options), counts_tokens=_counts_tokens(source)),
            budget=self._budget,
            progress=options.progress,
        )

    @cached_property
    def _subject(self) -> Runner:
        watched = self._log.session if self._log is not None and self._options.copied else None
        return self._opened(self._source, self._graph, watched)

    @cached_property
    def _reference(self) -> DefinitionReference:
        return self._definition()

    @property
    def _quantized(self) -> bool:
        return PRECISIONS[self._options.precision].quantized

    def _stored(self) -> Source:
        """The source of the reference: with the weights of the file, unless the user states a tolerance for them."""
        source = self._widened_source
        if self._quantized and self._options.tolerance is None:
            from posexport.proof.quantized.as_stored import as_stored

            source = as_stored(source, self._model, self._options.quantizer, self._options.matches)
        return _widened_parts(source) if self._options.copied else source

    def _definition(self) -> DefinitionReference:
        """The definition in PyTorch; a decoder of the user's is also compared with its forward without a cache."""
        source, options, kind = self._source, self._options, DefinitionReference
        if source.by_trial:
            from posexport.proof.references.judged_by_forward import kind_of

            kind = kind_of(source)
        # of some points of a model whose reduced model has shown what its modules keep
        watched = options.some is None
        return kind(source, options.computed, options.sample, options.reference_device, watched=watched)

    def _opened(self, source: Source, model: Path | bytes, make: Make | None = None) -> Runner:
        options = self._options
        how: dict[str, Any] = {"provider": options.provider, "threads": options.threads, "make": make}
        how |= {"provider_options": options.provider_options} if options.provider_options else {}
        if self._foreign is not None:
            from posexport.proof.foreign.runner import ForeignRunner

            return ForeignRunner(self._foreign, model, **how)
        # float weights, which a few calls need not have in another order, stay pages of the file
        few = options.some is not None and options.provider == DEFAULT_PROVIDER
        how["prepacking"] = not few or PRECISIONS[options.precision].quantized
        return Runner.of(source, model, source.part_specs, **how)

    @contextmanager
    def _watched_copy(self, log: RangeLog) -> Iterator[Runner]:
        """An emulated copy on the CPU, of a graph for a provider that computes in float16."""
        with emulated_if(WATCHED, self._model, self._widened_source.part_specs) as graph:
            yield self._opened(_widened_parts(self._source), graph, log.session)

    def _grid(self) -> list[GridPoint]:
        source, options = self._source, self._options
        further = source.further or (LONG if options.computed in HALVES else ())
        points = grid(source.limits, source.inputs, lengths=options.lengths, further=self._budget.further(further))
        # the reference of a decoder that got its cache by a pass has ids in place of keys
        drawable = source.limits.kv_cache and not isinstance(self._widened_source.module, ForwardDecoder)
        if drawable and options.lengths is None and self._foreign is None:
            points = with_ends(points, source.limits, source.inputs, self._budget.fits_easily)
        if options.lengths is not None:
            return points
        points = self._budget.with_few_rows(points)
        turns = (
            point for point in points_of_turns(source.limits, source.turns, points) if self._budget.fits_easily(point)
        )
        return list(dict.fromkeys([*points, *turns]))

    def _judge(self) -> Judge:
        options = self._options
        if options.tolerance is not None:
            return UserTolerance(options.computed, options.tolerance)
        return Criterion(options.computed, switches(self._source.limits))

    def _rejection(self, judge: Judge) -> Rejection:
        bounds, reference = bounds_of(self._source.limits), self._reference
        if self._foreign is None:
            return Guarded(self._source, bounds)
        from posexport.proof.foreign.runner import Beyond

        return Beyond(
            model=self._source,
            bounds=bounds,
            definition=lambda: (reference.truth, reference.baseline),
            values=judge,
            budget=self._budget,
        )

    def _covered(self, points: list[GridPoint]) -> Coverage | None:
        """The branches that ``points`` run; those that others need are added to them. None: they are not looked at."""
        options, source = self._options, self._source
        # nodes of another tool's graph do not name the modules that they come from
        if options.some is not None or self._foreign is not None or options.lengths is not None:
            return None
        coverage = cover(
            source,
            self._graph,
            points,
            provider=options.provider,
            threads=options.threads,
            budget=self._budget,
            progress=options.progress,
        )
        points += coverage.added
        if memory_mapped.size_of(source.module.parameters()) > memory_mapped.SHARED:
            gc.collect()  # copies of the module whose calls were measured
        trim()  # what its session took
        return coverage

    def _checks(self, coverage: Coverage | None) -> Iterator[Check]:
        """The checks in the order in which they run."""
        options, source = self._options, self._source
        if options.some is None:
            yield Invariants(self._reference)
            yield from self._checks_of_decoders()
        # also for some points alone: where nodes ran
        if not provider_named(options.provider).built_in:
            from posexport.proof.placement import Placement

            yield Placement(self._subject, self._graph, tuple(source.part_specs))
        if options.some is not None:
            return
        # of the whole grid: the range of float16, what depends on the tool that wrote the graph, the sample
        if self._log is not None:
            yield Range(self._log, None if options.copied else partial(self._watched_copy, self._log))
        if self._foreign is not None:
            from posexport.proof.foreign.runner import Findings

            yield Findings(source.limits.max_length)
        else:
            yield from self._checks_of_modules(coverage)
        if options.sample is not None:
            yield FinishSample(options.sample)
            if options.copied and not options.everything and loads(options.provider, options.computed):
                yield Shipped(options.sample, lambda: self._opened(self._widened_source, self._model))

    def _checks_of_decoders(self) -> Iterator[Check]:
        """The checks of what is kept between calls, and of logits."""
        source = self._source
        if source.limits.kv_cache:
            from posexport.proof.invariants.rollout import GreedySteps

            yield GreedySteps(self._reference, self._subject)
        if self._foreign is None and NUM_LOGITS in self._subject.types:
            from posexport.proof.invariants.last_logits import LastLogitsHold

            yield LastLogitsHold(self._subject)
        if any(spec.role == "state" for spec in source.inputs):
            from posexport.proof.invariants.states import StatesHold

            yield StatesHold(self._reference, self._subject)

    def _checks_of_modules(self, coverage: Coverage | None) -> Iterator[Check]:
        """The checks that need the modules that nodes come from, which another tool's graph does not name."""
        options, source = self._options, self._source
        if coverage is not None:
            yield Branches(coverage)
        yield Location(source, self._graph, options.threads)
        # float32 operators have no narrower types to read: values decide there
        if options.computed in HALVES and options.by_session is None and not options.everything:
            from posexport.proof.positions import Positions

            yield Positions(self._widened_source, self._model)
        if self._quantized and options.agreement:
            yield CostOnGrid(self._widened_source)


def _widened_parts(source: Source) -> Source:
    """``source`` with the inputs and outputs of its parts in float32, as an emulated copy has them."""
    specs = widened_parts(source.part_specs)
    graphs = [replace(graph, spec=spec) for graph, spec in zip(source.parts, specs, strict=True)]
    return msgspec.structs.replace(source, parts=graphs)


def about(options: ProofOptions) -> Report:
    """The report before anything has run."""
    return Report(
        scope="grid",
        provider=options.provider,
        precision=options.emulate or options.by_session or options.precision,
        points=[],
        lengths=sorted(set(options.lengths or ())),
        tolerance=options.tolerance,
        emulated=options.copied,
    )


def _counts_tokens(source: Source) -> bool:
    """Whether the points' lengths are numbers of tokens."""
    return any(SEQUENCE in spec.axes for spec in source.inputs) and not source.limits.convolutions


def heads_of(source: Source) -> int:
    """The most attention heads whose scores are in memory at once, for the estimate of memory.

    1 where attention of PyTorch and of the graph is tiled over queries and no bias is held for all of them.
    """
    known = [module for module in source.module.modules() if isinstance(module, Encoding)]
    if known and not any({"scores", "values"} & {*encoding.hooks} for encoding in known):
        return 1
    names = ("heads", "num_heads", "num_attention_heads", "n_heads")
    counts = (getattr(submodule, name, None) for submodule in source.module.modules() for name in names)
    return max((count for count in counts if isinstance(count, int)), default=Budget.heads)
