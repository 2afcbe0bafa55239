"""Contestants out of what a user names."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from posexport.bench import contestants as of
from posexport.bench.contestants import Checkpoint, Contestant
from posexport.bench.environments import FailedError
from posexport.bench.measure_suite import Heat
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


def heat(
    models: Sequence[str],
    options: Sequence[str],
    *,
    rivals: bool,
    lengths: Sequence[int],
    batches: Sequence[int],
    pasts: Sequence[int],
    remark: Callable[[str], None],
) -> Heat:
    """Bundles, or what ``posexport convert`` takes with ``options``; the first is the floor.

    Raises:
        PosexportError: one that cannot be converted, or models with and without a cache.
    """
    found = [_contestant(model, options, remark) for model in models]
    cached = {manifest.envelope.cached for _, manifest in found}
    if len(cached) > 1:
        raise PosexportError("decoders with a cache cannot be compared with models that have none; give one kind")
    if pasts and cached == {False}:
        raise PosexportError(f"--past is for decoders with a cache, {models[0]} has none; leave it out")
    taking_part = [who for who, _ in found]
    for model, (who, _) in zip(models, found, strict=True):
        if rivals and Path(model, "config.json").is_file() and who.recipe is not None:
            checkpoint = Checkpoint.there(Path(model))
            others = [checkpoint.transformers(), of.eager(who), of.eager(who, compiled=True), *checkpoint.rivals()]
            taking_part += [replace(other, weights=who.weights, vocab=who.vocab) for other in others]
    return Heat(
        model=", ".join(models),
        contestants=taking_part,
        points=points(lengths, batches, pasts, cached=cached == {True}),
    )


def _contestant(model: str, options: Sequence[str], remark: Callable[[str], None]) -> tuple[Contestant, Manifest]:
    path = Path(model)
    if (path / MANIFEST).is_file():
        who = replace(of.convert(model, vocab=0), recipe=None, model=str(path / MODEL))
        manifest = read(path)
    else:
        source = str(path.absolute()) if path.is_dir() else model
        who = of.convert(source, *options, vocab=0, name=model)
        assert who.recipe is not None
        try:
            manifest = read(make(who.recipe, remark).folder / "bundle")
        except FailedError as err:
            raise PosexportError(str(err).removeprefix("posexport: ")) from err
    others = [
        spec.name for spec in manifest.inputs if spec.role not in ("tokens", "mask", "types", "cache", "positions")
    ]
    if others:
        raise PosexportError(f"{model} takes {', '.join(others)}; bench measures models that take tokens")
    vocab = next(spec.size for spec in manifest.inputs if spec.role == "tokens")
    shared = any(CAPACITY in spec.axes for spec in manifest.inputs)
    return replace(who, vocab=vocab or 2, options={"shared": shared}), manifest
