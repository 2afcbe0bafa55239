"""Prove a bundle or an .onnx: the whole grid against its source, or the sample that a bundle carries."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from posexport.base.options.check import check_options
from posexport.base.options.commands import VerifyOptions
from posexport.base.options.recipe import ADAPTER_INPUTS, Recipe
from posexport.base.spec import PartSpec, as_metadata
from posexport.base.system.one_at_a_time import ONE_AT_A_TIME
from posexport.errors import PosexportError
from posexport.proof.subjects.half import check_emulation, stored_precision
from posexport.run.bundle.manifest import MANIFEST, MODEL, SAMPLE, Manifest, SourceInfo, model_of
from posexport.run.bundle.read import check_hashes, read
from posexport.run.bundle.variants import variant_file
from posexport.run.providers import check_uncaptured
from posexport.run.tokenizer.settings import CONFIG, TOKENIZER

if TYPE_CHECKING:
    from torch import nn

    from posexport.base.targets.precisions import PrecisionName
    from posexport.conversion.reduced import Reduced
    from posexport.proof.foreign.fit import Foreign
    from posexport.proof.report.report import Report
    from posexport.sources.load_options import LoadOptions
    from posexport.sources.source import Source

_T = TypeVar("_T")


def verify(target: Path, against: "str | nn.Module | None" = None, options: VerifyOptions | None = None) -> "Report":
    """The report on ``target``, a bundle or an .onnx file: what `posexport.verify` does.

    Without ``against`` a bundle's stored sample is checked, which needs no PyTorch. Raises PosexportError where there
    is nothing to check with, the bundle is damaged, or the provider does not load.
    """
    options = options or VerifyOptions()
    check_options(options)
    remark, tolerance = options.remark or (lambda _: None), options.tolerance
    if tolerance is not None and not 0 < tolerance < float("inf"):
        raise PosexportError(f"tolerance must be a relative error above 0, such as 1e-3, got {tolerance}")
    check_uncaptured(options.provider, options.provider_options)
    manifest = _manifest(target, options.precision)
    if against is None:
        return _by_sample(target, manifest, options)

    from posexport.proof.choose import ProofOptions, prove_model
    from posexport.proof.full_model.records import NotComparableError, StructureError
    from posexport.proof.reduced.prove import prove_reduced
    from posexport.sources.load_options import LoadOptions
    from posexport.sources.transformers_model import as_checkpoint

    # with a source: load it as the recipe says, then prove the graph as a conversion does
    live = options.example_inputs is not None
    with (
        ONE_AT_A_TIME,
        as_checkpoint(against, live=live or (manifest is not None and manifest.source.kind == "python")) as (given, _),
    ):
        recipe, origin = _recipe(target, manifest)
        lazy = manifest is not None  # another tool's graph is compared with the module before its proof
        source = _source(target, manifest, given, LoadOptions.of(options), recipe, origin, remark, lazy=lazy)
        source = _with_tokenizer_of(target, manifest, source)
        proof_options = ProofOptions(
            provider=options.provider,
            provider_options=options.provider_options or {},
            precision=stored_precision(target) if recipe is None else recipe.precision,
            quantizer=None if recipe is None else recipe.quantizer,
            emulate=options.emulate,
            lengths=options.lengths or None,
            threads=options.threads,
            tolerance=tolerance,
            progress=options.progress or (lambda *_: None),
        )
        if options.emulate is not None:
            check_emulation(target, proof_options.precision, options.emulate)
        # another tool's graph has other inputs, and other ways to reject lengths
        if manifest is None and (foreign := _foreign(target, source, remark)) is not None:
            return prove_model(source, target, proof_options, foreign)
        specs = source.part_specs
        files, expected = [spec.file for spec in manifest.parts] if manifest else [], [spec.file for spec in specs]
        if files != expected:
            names = " and ".join(expected) or "one graph"
            raise PosexportError(f"{against} is exported as {names}, {target} is not; verify it against its own source")
        reduced = None if manifest is None else _reduced(source, manifest.recipe, options, remark)
        if reduced is not None:
            with contextlib.suppress(NotComparableError, StructureError):
                return prove_reduced(reduced.reduction, target, proof_options, reduced.export)
        return prove_model(source, target if manifest is None else model_of(target, specs), proof_options)


def _reduced(
    source: "Source", recipe: Recipe, options: VerifyOptions, remark: Callable[[str], None]
) -> "Reduced | None":
    """The reduced model of a large source, exported again as its bundle's recipe says; texts are not recorded."""
    from posexport.conversion.export.layout import layout_named
    from posexport.conversion.graphs import Export
    from posexport.conversion.reduced import reduced_model

    if recipe.calibrate is not None or options.tolerance is not None or options.emulate is not None:
        return None
    export = Export(recipe, layout_named(recipe.layout), [], options.threads)
    return reduced_model(source, export, options.proof, remark)


def _with_tokenizer_of(target: Path, manifest: Manifest | None, source: "Source") -> "Source":
    """``source`` with the tokenizer of the bundle, which may pad on another side than its own; none for an .onnx."""
    names = (TOKENIZER, CONFIG)
    files = {name: path for name, path in source.files.items() if name not in names}
    if manifest is not None:
        files |= {name: target / name for name in names if name in manifest.files}
    return msgspec.structs.replace(source, files=files)


def _manifest(target: Path, precision: "PrecisionName | None") -> Manifest | None:
    """The manifest of a complete bundle; None for a lone .onnx."""
    if target.is_dir():
        _check_bundle(target)
        manifest = read(target, precision)
        check_hashes(target, manifest)
        _agree(target, manifest)
        return manifest
    if not target.is_file():
        raise PosexportError(f"no such bundle or .onnx file: {target}")
    if precision is not None:
        raise PosexportError(f"{target} is one .onnx: --precision chooses among those of a bundle; leave it out")
    return None


def _by_sample(target: Path, manifest: Manifest | None, options: VerifyOptions) -> "Report":
    """The report by the sample that the bundle carries."""
    from posexport.proof.sample.check import check_sample

    emulate = options.emulate
    if manifest is None:
        raise PosexportError(_without_source(target))
    if options.lengths:
        raise PosexportError("--length needs --against SOURCE: the stored sample has the lengths it has")
    if emulate is not None and check_emulation(target, manifest.precision, emulate) == "everything":
        raise PosexportError(
            f"--emulate {emulate} of a {manifest.precision} bundle needs --against SOURCE: its stored sample has "
            f"tolerances of {manifest.precision}"
        )
    variant = None if options.precision == read(target).precision else options.precision
    return check_sample(
        target,
        parts=manifest.parts,
        file=variant_file(SAMPLE, variant),
        provider=options.provider,
        provider_options=options.provider_options,
        threads=options.threads,
        tolerance=options.tolerance,
        emulate=emulate is not None,
    )


def _source(
    target: Path,
    manifest: Manifest | None,
    against: "str | nn.Module",
    options: "LoadOptions | None",
    recipe: Recipe | None,
    origin: SourceInfo | None,
    remark: Callable[[str], None],
    *,
    lazy: bool = False,
) -> "Source":
    """The source, loaded with the options that the recipe recorded; ``lazy``: as of `load_source`."""
    from posexport.conversion.export.layout import arranged
    from posexport.sources.load_options import LoadOptions
    from posexport.sources.prepare import prepare, recorded_options

    loading = options or LoadOptions()
    if manifest is not None:
        loading = replace(
            loading, bundle_inputs=manifest.inputs, shown=replace(loading.shown, steps=manifest.limits.size_steps)
        )
    if recipe is None or origin is None:
        source = prepare(against, loading)
    else:
        record = msgspec.to_builtins(recipe)
        recorded = recorded_options(record, loading, against, kind=origin.kind, name=origin.name)
        try:
            source = prepare(against, recorded, recipe, lazy=lazy)
            in_files = recipe.adapter_format == ADAPTER_INPUTS
            source = arranged(source, recipe.layout, recipe.record, alone=manifest is None, in_files=in_files)
        except PosexportError as err:  # recorded options that do not fit this source
            if manifest is None or prepare(against, loading).sha256 == manifest.source.sha256:
                raise
            raise PosexportError(f"{_not_the_source(against, target, manifest)}; verify it against that") from err
    if manifest is not None and (fixed := _fixed_axes(manifest, source) - loading.shown.fixed):
        loading = replace(loading, shown=replace(loading.shown, fixed=fixed))
        return _source(target, manifest, against, loading, recipe, origin, remark, lazy=lazy)
    if manifest is not None and manifest.source.sha256 != source.sha256:
        remark(_not_the_source(source.public_name, target, manifest))
    return source


def _fixed_axes(manifest: Manifest, source: "Source") -> frozenset[tuple[str, int]]:
    """The axes of inputs, by number, that have one size in the bundle and vary in calls of the source."""
    axes = {spec.name: spec.axes for spec in source.inputs}
    return frozenset(
        (spec.name, number)
        for spec in manifest.inputs
        for number, (of_bundle, of_source) in enumerate(zip(spec.axes, axes.get(spec.name, ()), strict=False))
        if source.by_trial and isinstance(of_bundle, int) and isinstance(of_source, str)
    )


def source_again(bundle: Path, against: str) -> "Source":
    """The source of a bundle, loaded and prepared as the bundle's recipe says."""
    manifest = read(bundle)
    recipe, origin = _recipe(bundle, manifest)
    return _source(bundle, manifest, against, None, recipe, origin, lambda _: None)


def _foreign(target: Path, source: "Source", remark: Callable[[str], None]) -> "Foreign | None":
    """The feeds and the comparison of another tool's graph; None for a graph of posexport."""
    from posexport.proof.foreign.fit import fit
    from posexport.proof.foreign.signature import signature

    graph = signature(target)
    if graph.own:
        return None
    foreign = fit(source, graph, target.name)
    for sentence in foreign.remarks:
        remark(sentence)
    return foreign


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
    """Raise PosexportError where the manifest, which nothing hashes, and the graphs' metadata differ."""
    graphs: Sequence[tuple[str, Manifest | PartSpec]] = [(spec.file, spec) for spec in manifest.parts]
    for file, graph in graphs or [(MODEL, manifest)]:
        spec = msgspec.structs.replace(manifest, inputs=graph.inputs, outputs=graph.outputs)
        entries = _metadata(target / file)
        for field, text in {**spec.metadata, "recipe": as_metadata(manifest.recipe)}.items():
            if entries.get(f"posexport.{field}", text) != text:
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
    """Reads a model's ``metadata_props``."""
    import onnx

    try:
        proto = onnx.load(str(model), load_external_data=False)
    except Exception as err:  # protobuf's parser raises various types
        raise PosexportError(f"{model} is not an ONNX model: {err}") from err
    return {entry.key: entry.value for entry in proto.metadata_props}
