"""Candidates out of what a user names."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from posexport.bench import candidates
from posexport.bench.candidates import Candidate, Checkpoint
from posexport.bench.environments import FailedError
from posexport.bench.measure_suite import Case
from posexport.bench.recipes import make
from posexport.bench.records import Point
from posexport.bundle.manifest import MANIFEST, MODEL, Manifest
from posexport.bundle.read import read
from posexport.errors import PosexportError
from posexport.spec import CAPACITY


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
) -> Case:
    """Bundles, or what ``posexport convert`` takes with ``options``; the first is the baseline.

    Raises:
        PosexportError: one that cannot be converted, or models with and without a cache.
    """
    loaded = [_candidate(model, options, remark) for model in models]
    cached = {manifest.envelope.cached for _, manifest in loaded}
    if len(cached) > 1:
        raise PosexportError("decoders with a cache cannot be compared with models that have none; give one kind")
    if pasts and cached == {False}:
        raise PosexportError(f"--past is for decoders with a cache, {models[0]} has none; leave it out")
    taking_part = [candidate for candidate, _ in loaded]
    for model, candidate in zip(models, list(taking_part), strict=True):
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


def _candidate(model: str, options: Sequence[str], remark: Callable[[str], None]) -> tuple[Candidate, Manifest]:
    path = Path(model)
    if (path / MANIFEST).is_file():
        candidate = replace(candidates.convert(model, vocab=0), recipe=None, model=str(path / MODEL))
        manifest = read(path)
    else:
        source = str(path.absolute()) if path.is_dir() else model
        candidate = candidates.convert(source, *options, vocab=0, name=model)
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
    return replace(candidate, vocab=vocab or 2, options={"shared": shared}), manifest
