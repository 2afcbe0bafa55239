"""Profiles every graph of a bundle and attributes the time to positions, attention and the rest. Imports no torch."""

import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import onnx_ir as ir

from posexport.base.spec import (
    BATCH,
    CAPACITY,
    ENCODER_SEQUENCE,
    HEIGHT,
    PAST,
    PRESENT,
    SEQUENCE,
    WIDTH,
    InputSpec,
    PartSpec,
)
from posexport.base.targets.providers import DEFAULT_PROVIDER, HOST, provider_named
from posexport.errors import PosexportError
from posexport.inspect.bench.measurement import InProcess, SamplingBudget, interleave
from posexport.inspect.explain import feeds
from posexport.inspect.explain.origins import Origin, Origins
from posexport.inspect.explain.profile import Cost, calls, costs
from posexport.inspect.explain.records import SHARES, CostRow, Decision, Explanation, GraphCost, Kernel
from posexport.proof.grid.inputs import Feeds
from posexport.run.bundle.manifest import MODEL, Manifest
from posexport.run.bundle.read import check_hashes, locate, read
from posexport.run.chain import Link
from posexport.run.ort_values import run_bound
from posexport.run.providers import bundle_session, check_loads
from posexport.run.wrapped_session import refusal

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

#: the first calls allocate and do not count
BUDGET = SamplingBudget(warmup=2, runs=5, least=1, seconds=10.0)


def explain(
    directory: Path,
    *,
    length: int | None = None,
    past: int | None = None,
    batch: int = 1,
    provider: str = DEFAULT_PROVIDER,
    threads: int = 0,
) -> Explanation:
    """The lowerings of the bundle's attention and positions, the kernels that run, and the time of each.

    Sizes as in `posexport.inspect.explain.feeds.sizes`. A cache of fixed size is written in place, as `generate`
    does. On CUDA every kernel is waited for, else the profile has the time that it takes to start it.

    Raises PosexportError for an altered bundle or none, a provider that does not load, sizes that the bundle does not
    accept.
    """
    import onnxruntime

    manifest = read(directory)
    named = feeds.sizes(manifest.inputs, manifest.limits, batch=batch, length=length, past=past)
    record = provider_named(provider)
    check_hashes(directory, manifest)
    if not record.built_in:
        check_loads(provider)
    arrays = feeds.draw(manifest.inputs, manifest.limits, named)
    graphs: Sequence[tuple[str, Manifest | PartSpec]] = [(spec.file, spec) for spec in manifest.parts]
    graphs = graphs or [(MODEL, manifest)]
    later = bool(named.get(PAST))
    parts = []
    with tempfile.TemporaryDirectory(prefix="posexport-") as folder:
        for number, (file, graph) in enumerate(graphs):
            when = graph.when if isinstance(graph, PartSpec) else "always"
            if when == "later" and not later:
                continue
            # one session at a time: idle threads of another would slow it
            opened = _open(directory, file, graph, provider, threads, Path(folder) / f"part{number}")
            try:
                if when == "first" and later:  # what it gives is in the cache
                    arrays |= _outputs(opened.link, opened.link.one_token(arrays))
                    continue
                parts.append(_graph_cost(opened, opened.link.feeds(arrays), manifest, provider))
                if number < len(graphs) - 1:
                    arrays |= _outputs(opened.link, opened.link.feeds(arrays))
            except Exception as err:
                if reason := refusal(err):
                    raise PosexportError(f"the bundle refuses {_words(named, manifest)}: {reason}") from err
                raise
    return Explanation(
        bundle=str(directory),
        target=manifest.target,
        provider=provider,
        threads=threads,
        onnxruntime=onnxruntime.__version__,
        call=_words(named, manifest),
        parts=parts,
        passes=manifest.passes,
    )


@dataclass(frozen=True)
class _Opened:
    """A graph that is ready to be profiled."""

    file: str
    inputs: list[InputSpec]
    #: outputs that are the new state of inputs, where both are one buffer
    shared: dict[str, str]
    link: Link
    origins: Origins


def _open(
    directory: Path, file: str, graph: Manifest | PartSpec, provider: str, threads: int, profile: Path
) -> _Opened:
    model = ir.load(locate(directory, file))
    origins = Origins(model, {spec.name: spec.role for spec in graph.inputs})
    data = ir.to_proto(model).SerializeToString()
    weights = (directory / file).parent.resolve()
    session = bundle_session(data, provider=provider, threads=threads, profile=profile, weights=weights)
    if isinstance(graph, PartSpec):
        link = Link(session, graph.input_names, graph.output_names, graph.when, graph.inputs)
    else:
        input_names, output_names = ({spec.name: spec.name for spec in end} for end in (graph.inputs, graph.outputs))
        link = Link(session, input_names, output_names)
    past = [spec.name for spec in graph.inputs if CAPACITY in spec.axes]
    present = [spec.name for spec in graph.outputs if CAPACITY in spec.axes and set(PRESENT) & set(spec.axes)]
    shared = dict(zip(present, past, strict=True)) if len(past) == len(present) else {}
    return _Opened(file, list(graph.inputs), shared, link, origins)


def _graph_cost(opened: _Opened, arrays: Feeds, manifest: Manifest, provider: str) -> GraphCost:
    """Call a graph some times and read the profile of the last ones."""
    session = opened.link.session
    call = _bound(session, arrays, opened, provider)
    runs = len(interleave(InProcess(call, BUDGET.warmup), None, BUDGET).ms)
    profiled = calls(Path(session.end_profiling()), opened.origins)[BUDGET.warmup :]
    rows = _rows(costs(profiled), opened.origins)
    return GraphCost(
        file=opened.file,
        runs=runs,
        ms=median(interleave(InProcess(call, 0), None, BUDGET).ms),
        profiled_ms=median(run.us for run in profiled) / 1e3,
        kernels_ms=sum(cost.ms for cost in rows),
        decisions=_decisions(manifest, opened.origins),
        rows=rows,
    )


def _outputs(link: Link, feeds: Feeds) -> Feeds:
    """Runs a graph and returns its outputs by the bundle's names."""
    values = link.session.run(list(link.output_names), feeds)
    return dict(zip(link.output_names.values(), values, strict=True))


def _bound(session: "InferenceSession", arrays: Feeds, opened: _Opened, provider: str) -> Callable[[], object]:
    """A call on these arrays that leaves caches on the device."""
    from onnxruntime import OrtValue

    own_device = provider_named(provider).device
    roles = {spec.name: spec.role for spec in opened.inputs}
    values = {}
    for name, array in arrays.items():
        # ids and masks come from the host in every call
        device = own_device if roles[name] in ("cache", "state", "values") and array.size else HOST
        values[name] = OrtValue.ortvalue_from_numpy(array, device, 0)
    names = [output.name for output in session.get_outputs()]
    outputs = {name: values[opened.shared[name]] if name in opened.shared else own_device for name in names}
    return lambda: run_bound(session, {}, values, outputs)


def _rows(costs: Sequence[Cost], origins: Origins) -> list[CostRow]:
    """A row for each origin, in the order of `SHARES`, longest first."""
    by_origin: dict[Origin, list[Cost]] = defaultdict(list)
    for cost in costs:
        by_origin[cost.origin].append(cost)
    rows = [
        CostRow(
            share=origin.share,
            name=origin.of,
            nodes=origins.count(origin.of),
            within=origins.callers.get(origin.of, []),
            ms=sum(cost.us for cost in some) / 1e3,
            kernels=_kernels(some),
        )
        for origin, some in by_origin.items()
    ]
    return sorted(rows, key=lambda cost: (SHARES.index(cost.share), -cost.ms))


def _kernels(costs: Sequence[Cost]) -> list[Kernel]:
    sums: dict[tuple[str, str], tuple[int, float]] = {}
    for cost in costs:
        count, us = sums.get((cost.op_type, cost.provider), (0, 0.0))
        sums[cost.op_type, cost.provider] = count + cost.count, us + cost.us
    kernels = [
        Kernel(op_type=op_type, provider=where, count=count, ms=us / 1e3)
        for (op_type, where), (count, us) in sums.items()
    ]
    return sorted(kernels, key=lambda kernel: -kernel.ms)


def _decisions(manifest: Manifest, origins: Origins) -> list[Decision]:
    """How the nodes of one graph are computed; of a graph without functions, all that the manifest says."""
    return [
        Decision(
            node_type=name,
            nodes=origins.count(name) or spec.nodes,
            lowering=spec.lowering,
            rejected=spec.rejected,
        )
        for name, spec in manifest.lowerings.items()
        if not origins.nodes or origins.count(name)
    ]


def _words(named: Mapping[str, int], manifest: Manifest) -> str:
    axes = {axis for spec in manifest.inputs for axis in spec.axes}
    words = [f"batch {named[BATCH]}"]
    if manifest.limits.proof_image_sizes:
        return f"{words[0]}, image {named[HEIGHT]}x{named[WIDTH]}"
    if SEQUENCE in axes:
        words.append(f"length {named[SEQUENCE]}")
    words += [f"{axis} {named[axis]}" for sizes in manifest.limits.proof_sizes[-1:] for axis in sizes]
    if axes & {PAST, CAPACITY}:
        words.append(f"past {named[PAST]}")
    if ENCODER_SEQUENCE in axes:
        words.append(f"encoder length {named[ENCODER_SEQUENCE]}")
    return ", ".join(words)
