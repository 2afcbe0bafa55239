"""Candidates out of what a user names."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from posexport.bench import candidates
from posexport.bench.candidates import Candidate, Checkpoint
from posexport.bench.environments import FailedError
from posexport.bench.measure_suite import Case
from posexport.bench.recipes import make
from posexport.bench.records import Point
from posexport.bundle.manifest import MANIFEST, MODEL, Manifest
from posexport.bundle.read import read
from posexport.errors import PosexportError
from posexport.recipe import Recipe
from posexport.spec import CAPACITY
from posexport.targets.precision_options import PrecisionOptions
from posexport.targets.precisions import PrecisionName


def points(lengths: Sequence[int], batches: Sequence[int], pasts: Sequence[int], *, cached: bool) -> list[Point]:
    """All combinations; of what is not given, what suits a decoder with a cache or a model without."""
    pasts = pasts or ([512] if cached else [0])
    new = lengths or ([1] if cached else [128, 512])
    return [Point(batch=b, past=p, new=n) for b in batches or [1] for p in pasts for n in new]


def case(
    models: Sequence[str],
    options: Sequence[str],
    *,
    third_party: bool,
    lengths: Sequence[int],
    batches: Sequence[int],
    pasts: Sequence[int],
    remark: Callable[[str], None],
    precisions: Sequence[PrecisionName] = (),
) -> Case:
    """Bundles, or what ``posexport convert`` takes with ``options``; the first is the baseline.

    ``precisions``: what each model is converted to, a candidate for each; none: float32.

    Raises:
        PosexportError: one that cannot be converted, or models with and without a cache.
    """
    named = [(model, precision) for model in models for precision in precisions or (None,)]
    loaded = [_candidate(model, precision, options, remark) for model, precision in named]
    cached = {manifest.envelope.cached for _, manifest in loaded}
    if len(cached) > 1:
        raise PosexportError("decoders with a cache cannot be compared with models that have none; give one kind")
    if pasts and cached == {False}:
        raise PosexportError(f"--past is for decoders with a cache, {models[0]} has none; leave it out")
    taking_part = [candidate for candidate, _ in loaded]
    for (model, _), candidate in zip(named, list(taking_part), strict=True):
        if third_party and Path(model, "config.json").is_file() and candidate.recipe is not None:
            checkpoint = Checkpoint.there(Path(model))
            eager = [candidates.eager(candidate), candidates.eager(candidate, compiled=True)]
            others = [checkpoint.transformers(), *eager, *checkpoint.third_party_exporters()]
            taking_part += [replace(other, weights=candidate.weights, vocab=candidate.vocab) for other in others]
    return Case(
        model=", ".join(models),
        candidates=taking_part,
        points=points(lengths, batches, pasts, cached=cached == {True}),
    )


def _candidate(
    model: str, precision: PrecisionName | None, options: Sequence[str], remark: Callable[[str], None]
) -> tuple[Candidate, Manifest]:
    path = Path(model)
    if (path / MANIFEST).is_file():
        manifest = read(path, precision)
        if manifest.parts:
            raise PosexportError(f"{model} has several graphs; bench measures models that are one")
        candidate = replace(candidates.convert(model, vocab=0), recipe=None, model=str(path / MODEL))
    else:
        source = str(path.absolute()) if path.is_dir() else model
        asked = () if precision is None else ("--precision", precision)
        name = model if precision is None else f"{model} {precision}"
        candidate = candidates.convert(source, *options, *asked, vocab=0, name=name)
        assert candidate.recipe is not None
        try:
            manifest = read(make(candidate.recipe, remark).folder / "bundle")
        except FailedError as err:
            raise PosexportError(str(err).removeprefix("posexport: ")) from err
    others = [
        spec.name for spec in manifest.inputs if spec.role not in ("tokens", "mask", "types", "cache", "positions")
    ]
    if others:
        raise PosexportError(f"{model} takes {', '.join(others)}; bench measures models that take tokens")
    vocab = next(spec.size for spec in manifest.inputs if spec.role == "tokens")
    shared = any(CAPACITY in spec.axes for spec in manifest.inputs)
    return (
        replace(
            candidate,
            vocab=vocab or 2,
            weights=_weights(manifest),
            precision=manifest.precision,
            options={"shared": shared},
        ),
        manifest,
    )


def _weights(manifest: Manifest) -> str:
    """Equal for bundles of one source that differ in what may not change the answer but by its precision."""
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
    return f"{manifest.source.sha256} {msgspec.json.encode(same).decode()}"
