"""Candidates of a benchmark: models, converted first if necessary, and the workers that run them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from posexport.base.options.recipe import Recipe
from posexport.base.spec import CAPACITY, CARRIED
from posexport.base.targets.precisions import FP32, PrecisionName, PrecisionOptions
from posexport.errors import PosexportError
from posexport.inspect.bench.processes import FailedError, run
from posexport.inspect.bench.records import Point
from posexport.run.bundle.manifest import MANIFEST, MODEL, Manifest
from posexport.run.bundle.read import read


@dataclass(frozen=True, kw_only=True)
class Export:
    """The cost of an export: seconds, and peak memory in bytes. ``remark``: the exporter's remark on the source."""

    seconds: float
    peak: int | None
    remark: str | None = None


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A model and the worker that runs it.

    ``model``: its path or name. Candidates of the same ``weights`` must agree, candidates of a ``precision`` below
    float32 within what it may cost. ``environment`` and ``python``: the name and the interpreter of another
    environment that runs the worker. ``by_posexport``: ``posexport convert`` wrote the graph. ``provider``, with its
    ``provider_options``: where it runs, if not where the run's conditions say. ``failed``: the reason if there is no
    model; ``nodes``: their number in the graph; ``reads``: bytes of weights that a decode step reads.
    """

    name: str
    model: str
    vocab: int
    weights: str
    worker: str = "posexport.inspect.bench.workers.onnx"
    environment: str | None = None
    python: str | None = None
    by_posexport: bool = True
    precision: PrecisionName = FP32.name
    provider: str | None = None
    provider_options: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    export: Export | None = None
    failed: str | None = None
    nodes: int | None = None
    reads: int | None = None


def nodes(graph: Path) -> int | None:
    """The number of nodes of a graph, counted in another process to keep this one small; None for other files."""
    if graph.suffix != ".onnx" or not graph.is_file():
        return None
    try:
        return int(run("posexport.inspect.bench.nodes", [str(graph)]).output)
    except FailedError:
        return None


def reads(path: Path, python: str | None = None) -> int | None:
    """Bytes of weights that a decode step reads, counted by ``python`` in another process; None if it cannot."""
    if not path.is_file():
        return None
    try:
        return int(run("posexport.inspect.bench.reads", [str(path)], python=python).output)
    except FailedError:
        return None


def points(lengths: Sequence[int], batches: Sequence[int], pasts: Sequence[int], *, cached: bool) -> list[Point]:
    """All combinations; defaults for absent sizes depend on whether the models have a KV cache."""
    pasts = pasts or ([512] if cached else [0])
    new = lengths or ([1] if cached else [128, 512])
    return [Point(batch=b, past=p, new=n) for b in batches or [1] for p in pasts for n in new]


def candidates(
    models: Sequence[str], precisions: Sequence[PrecisionName], options: Sequence[str], folder: Path
) -> tuple[list[Candidate], bool]:
    """Bundles, or what ``posexport convert`` takes with ``options``, and whether they have a cache.

    ``precisions``: each model is a candidate in each of them; empty: float32. Converted bundles are written to
    ``folder``.

    Raises:
        PosexportError: one that cannot be converted or measured, or models with and without a cache.
    """
    named = [(model, precision) for model in models for precision in precisions or (None,)]
    opened = [
        _candidate(model, precision, options, folder / str(number)) for number, (model, precision) in enumerate(named)
    ]
    cached = {manifest.limits.kv_cache for _, manifest in opened}
    if len(cached) > 1:
        raise PosexportError("decoders with a cache cannot be compared with models that have none; give one kind")
    return [candidate for candidate, _ in opened], cached == {True}


def convert(source: str, options: Sequence[str], bundle: Path) -> Export:
    """Write ``bundle`` in a separate process and measure its memory; raises PosexportError with its message."""
    try:
        ended = run("posexport", ["convert", source, "-o", str(bundle), "--no-verify", *options])
    except FailedError as err:
        raise PosexportError(str(err).removeprefix("posexport: ")) from err
    return Export(seconds=ended.seconds, peak=ended.peak)


def _candidate(
    model: str, precision: PrecisionName | None, options: Sequence[str], bundle: Path
) -> tuple[Candidate, Manifest]:
    # a bundle is measured as it is, anything else is converted first
    name, export = model, None
    if (Path(model) / MANIFEST).is_file():
        bundle = Path(model)
        manifest = read(bundle, precision)
    else:
        precision_options = () if precision is None else ("--precision", precision)
        name = model if precision is None else f"{model} {precision}"
        export = convert(model, (*options, *precision_options), bundle)
        manifest = read(bundle)
    # workers feed tokens to one graph
    if manifest.parts:
        raise PosexportError(f"{model} has several graphs; bench measures models that are one")
    known = ("tokens", "mask", "types", *CARRIED, "positions", "adapters")
    differing = [spec.name for spec in manifest.inputs if spec.role not in known]
    if differing:
        raise PosexportError(f"{model} takes {', '.join(differing)}; bench measures models that take tokens")
    graph = (bundle / MODEL).absolute()
    candidate = Candidate(
        name=name,
        model=str(graph),
        vocab=next(spec.size for spec in manifest.inputs if spec.role == "tokens") or 2,
        weights=_weights(manifest),
        precision=manifest.precision,
        options={"shared": any(CAPACITY in spec.axes for spec in manifest.inputs)},
        export=export,
        nodes=nodes(graph),
        reads=reads(graph),
    )
    return candidate, manifest


def _weights(manifest: Manifest) -> str:
    """A key, equal for bundles of one source with outputs that may differ by their precision only."""
    graph = Recipe(task=manifest.task, opset=manifest.opset)
    same = msgspec.structs.replace(
        manifest.recipe,
        target=graph.target,
        lowering=graph.lowering,
        opset=graph.opset,
        inline=graph.inline,
        layout=graph.layout,
        cache=graph.cache,
        rotation=graph.rotation,
        **msgspec.structs.asdict(PrecisionOptions()),
    )
    # built-in models that differ in their encoding alone may have the same parameters
    name = manifest.source.name if manifest.source.kind == "builtin" else ""
    return f"{name} {manifest.source.sha256} {msgspec.json.encode(same).decode()}"
