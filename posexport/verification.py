"""Prove a bundle or an .onnx: the whole grid against its source, or the sample that a bundle carries."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from posexport.bundle.manifest import MANIFEST, MODEL, SAMPLE, Manifest, SourceInfo, model_of
from posexport.bundle.read import check_hashes, read
from posexport.bundle.variants import variant_file
from posexport.errors import PosexportError
from posexport.parity.run.emulation import rounds_everything
from posexport.recipe import Recipe
from posexport.spec import PartSpec
from posexport.targets.precisions import PRECISIONS
from posexport.targets.providers import DEFAULT_PROVIDER

if TYPE_CHECKING:
    from torch import nn

    from posexport.parity.report.report import Report
    from posexport.sources.resolve import LoadOptions
    from posexport.sources.source import Source
    from posexport.targets.precisions import PrecisionName

_T = TypeVar("_T")


def verify(
    target: Path,
    *,
    against: "str | nn.Module | None" = None,
    options: "LoadOptions | None" = None,
    tolerance: float | None = None,
    precision: "PrecisionName | None" = None,
    emulate: "PrecisionName | None" = None,
    provider: str = DEFAULT_PROVIDER,
    lengths: Sequence[int] | None = None,
    threads: int = 0,
    progress: Callable[[int, int, str], None] | None = None,
    remark: Callable[[str], None] = lambda _: None,
) -> "Report":
    """The report on ``target``, a bundle or an .onnx file: what `posexport.verify` does.

    Without ``against`` a bundle's stored sample is checked, which needs no PyTorch. Raises PosexportError where there
    is nothing to check with, the bundle is damaged, or the provider does not load.

    ``emulate``: check a copy that computes in float32 and rounds to that precision; of a float32 graph everything is.
    """
    if tolerance is not None and not 0 < tolerance < float("inf"):
        raise PosexportError(f"tolerance must be a relative error above 0, such as 1e-3, got {tolerance}")
    manifest = None
    if target.is_dir():
        _check_bundle(target)
        manifest = read(target, precision)
        check_hashes(target, manifest)
        _agree(target, manifest)
    elif not target.is_file():
        raise PosexportError(f"no such bundle or .onnx file: {target}")
    elif precision is not None:
        raise PosexportError(f"{target} is one .onnx: --precision chooses among those of a bundle; leave it out")
    if against is None:
        if manifest is None:
            raise PosexportError(_without_source(target))
        if lengths:
            raise PosexportError("--length needs --against SOURCE: the stored sample has the lengths it has")
        if emulate is not None and rounds_everything(target, manifest.precision, emulate):
            raise PosexportError(
                f"--emulate {emulate} of a {manifest.precision} bundle needs --against SOURCE: its stored sample has "
                f"tolerances of {manifest.precision}"
            )
        from posexport.parity.run.sample import check_sample

        own = None if precision == read(target).precision else precision
        return check_sample(
            target,
            parts=manifest.parts,
            file=variant_file(SAMPLE, own),
            provider=provider,
            threads=threads,
            tolerance=tolerance,
            emulate=emulate is not None,
        )

    from posexport.sources.transformers_model import as_checkpoint

    with as_checkpoint(against) as named:
        return _prove(
            target,
            manifest,
            named,
            options,
            tolerance=tolerance,
            emulate=emulate,
            provider=provider,
            lengths=lengths,
            threads=threads,
            progress=progress,
            remark=remark,
        )


def _prove(
    target: Path,
    manifest: Manifest | None,
    against: "str | nn.Module",
    options: "LoadOptions | None",
    *,
    tolerance: float | None,
    emulate: "PrecisionName | None",
    provider: str,
    lengths: Sequence[int] | None,
    threads: int,
    progress: Callable[[int, int, str], None] | None,
    remark: Callable[[str], None],
) -> "Report":
    """The grid, against a source that `prepare` takes."""
    from posexport.export import layouts
    from posexport.parity.agreement.agree import agree
    from posexport.parity.foreign.fit import fit
    from posexport.parity.foreign.signature import signature
    from posexport.parity.positions.invariant import with_positions
    from posexport.parity.prove import prove
    from posexport.parity.run.emulation import emulated_if, stored_precision
    from posexport.sources.prepare import again, prepare
    from posexport.sources.resolve import LoadOptions

    recipe, origin = _recipe(target, manifest)
    loading = replace(options or LoadOptions(), bundle_inputs=() if manifest is None else manifest.inputs)
    if recipe is None or origin is None:
        source = prepare(against, loading)
    else:
        try:
            source = prepare(
                against,
                again(msgspec.to_builtins(recipe), loading, against, kind=origin.kind, name=origin.name),
                beyond=recipe.beyond,
                max_length=recipe.max_length,
                cache=recipe.cache,
                rotation=recipe.rotation,
            )
            source = layouts.arranged(source, recipe.layout, recipe.precision.precision, alone=manifest is None)
        except PosexportError as err:  # options that fitted the bundle's own source, and do not fit this one
            if manifest is None or prepare(against, loading).sha256 == manifest.source.sha256:
                raise
            raise PosexportError(f"{_not_the_source(against, target, manifest)}; verify it against that") from err
    if manifest is not None and manifest.source.sha256 != source.sha256:
        remark(_not_the_source(source.public_name, target, manifest))
    stored = stored_precision(target) if recipe is None else recipe.precision.name
    everywhere = emulate is not None and rounds_everything(target, stored, emulate)
    if manifest is None and not (graph := signature(target)).own:
        foreign = fit(source, graph, target.name)
        for sentence in foreign.remarks:
            remark(sentence)
        with emulated_if(emulate, target, [], everywhere=everywhere) as copy:
            return prove(
                foreign.source,
                copy,
                provider=provider,
                precision=emulate or stored,
                lengths=lengths,
                threads=threads,
                tolerance=tolerance,
                progress=progress,
                foreign=foreign,
                emulated=emulate is not None,
            )
    parts, source_parts = ([] if manifest is None else manifest.parts), [part.spec for part in source.parts]
    if [part.file for part in parts] != [part.file for part in source_parts]:
        names = " and ".join(part.file for part in source_parts) or "one graph"
        raise PosexportError(f"{against} is exported as {names}, {target} is not; verify it against its own source")
    model = target if manifest is None else model_of(target, source_parts)
    how: dict[str, Any] = {"provider": provider, "lengths": lengths, "threads": threads, "progress": progress}
    if recipe is None or not recipe.precision.precision.quantized or tolerance is not None:
        computed = emulate or PRECISIONS[stored].dtype.precision
        with emulated_if(emulate, model, source_parts, everywhere=everywhere) as copy:
            report = prove(source, copy, tolerance=tolerance, precision=computed, emulated=emulate is not None, **how)
        return report if emulate is None or everywhere else with_positions(report, source, model)
    with tempfile.TemporaryDirectory() as folder:
        return agree(source, model, _float32(source, Path(folder), recipe), recipe.precision, **how)


def _float32(source: "Source", folder: Path, recipe: Recipe) -> Path:
    """The float32 graphs that those of a bundle with this recipe were made from, in ``folder``."""
    from posexport.export.build import build_float32
    from posexport.export.layouts import LAYOUTS
    from posexport.export.negotiate import IR_VERSION

    clients_have = LAYOUTS[recipe.layout].microsoft
    for file, graph in source.graphs.items():
        build_float32(graph, folder / file, recipe, ir_version=IR_VERSION, clients_have=clients_have)
    return model_of(folder, source.parts)


def _not_the_source(against: object, target: Path, manifest: Manifest) -> str:
    return f"{against} is not what {target} was made from ({manifest.source.name}): its weights or files differ"


def _check_bundle(target: Path) -> None:
    """PosexportError that says what to type where a directory is no bundle and holds .onnx files."""
    if (target / MANIFEST).exists():
        return
    for folder in (target, target / "onnx"):
        if models := sorted(folder.glob("*.onnx")):
            commands = " or ".join(f"posexport verify {model} --against SOURCE" for model in models[:3])
            raise PosexportError(f"{target} is not a bundle: it has no {MANIFEST}; for its .onnx, type {commands}")


def _without_source(model: Path) -> str:
    if (model.parent / MANIFEST).is_file():
        return f"{model} has no stored sample of its own, its bundle has: posexport verify {model.parent}"
    return f"{model} is a lone .onnx without a stored sample; say what it came from with --against"


def _agree(target: Path, manifest: Manifest) -> None:
    """Nothing hashes the manifest itself: what it promises must be what the graphs say of themselves."""
    graphs: Sequence[tuple[str, Manifest | PartSpec]] = [(part.file, part) for part in manifest.parts]
    for file, graph in graphs or [(MODEL, manifest)]:
        entries = _metadata(target / file)
        said = {
            "inputs": graph.inputs,
            "outputs": graph.outputs,
            "limits": manifest.envelope,
            "recipe": manifest.recipe,
        }
        for field, value in said.items():
            entry = entries.get(f"posexport.{field}")
            if entry is not None and msgspec.json.decode(entry) != msgspec.json.decode(msgspec.json.encode(value)):
                raise PosexportError(
                    f"{target / MANIFEST} gives other {field} than {file} does: it was altered; copy or convert the "
                    "bundle again"
                )


def _recipe(target: Path, manifest: Manifest | None) -> tuple[Recipe | None, SourceInfo | None]:
    """How the bundle was converted and from what; of a lone .onnx, what its metadata says, or nothing."""
    if manifest is not None:
        return manifest.recipe, manifest.source
    entries = _metadata(target)
    if "posexport.recipe" not in entries:
        return None, None
    return _decoded(target, entries, "recipe", Recipe), _decoded(target, entries, "source", SourceInfo)


def _decoded(target: Path, entries: dict[str, str], field: str, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(entries.get(f"posexport.{field}", "null"), type=kind)
    except msgspec.MsgspecError as err:
        raise PosexportError(
            f"{target} has a posexport.{field} in its metadata that cannot be read: {err}; convert it again"
        ) from err


def _metadata(model: Path) -> dict[str, str]:
    """A model's ``metadata_props``."""
    import onnx

    try:
        proto = onnx.load(str(model), load_external_data=False)
    except Exception as err:  # protobuf's parser raises its own kinds
        raise PosexportError(f"{model} is not an ONNX model: {err}") from err
    return {entry.key: entry.value for entry in proto.metadata_props}
