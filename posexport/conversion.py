"""The main job: load a source, export it, prove it, write the bundle."""

import contextlib
import datetime
import hashlib
import importlib.metadata
import json
import platform
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import msgspec

from posexport import __version__
from posexport.bundle.copied import copy_without_paths
from posexport.bundle.manifest import (
    SAMPLE,
    LoweringSpec,
    Manifest,
    PassSpec,
    PrecisionCost,
    SourceInfo,
    TextAgreement,
    model_of,
)
from posexport.bundle.variants import variant_file
from posexport.bundle.write import seal, staged
from posexport.errors import PosexportError
from posexport.files import size_text
from posexport.recipe import CacheName, LayoutName, Recipe
from posexport.runtime.providers import check_loads
from posexport.sources.resolve import LoadOptions
from posexport.spec import SEQUENCE, Beyond, Limits
from posexport.suggest import check_choice
from posexport.targets.precision_options import PrecisionOptions
from posexport.targets.precisions import FP32
from posexport.targets.providers import CPU, DEFAULT_PROVIDER, PROVIDERS, provider_named
from posexport.targets.target import TARGETS
from posexport.tokenizer import with_tokenizer

if TYPE_CHECKING:
    from torch import nn

    from posexport.export.build import Built
    from posexport.nn.caching import Rotate
    from posexport.parity.grid.inputs import Feeds
    from posexport.parity.report.report import Report
    from posexport.precision.calibration import Calibration
    from posexport.sources.source import Source
    from posexport.targets.precisions import PrecisionName
    from posexport.targets.target import TargetName

PARITY = "parity.json"
#: the folder, while a conversion is under way, of the graphs that quantized ones are made from
FLOAT32 = ".float32"
_TOOLS = ("torch", "onnx", "onnx-ir", "onnxscript", "onnxruntime-gpu", "onnxruntime", "numpy")

#: what an option may be, where it is one of few words
_CHOICES = {
    "target": TARGETS,
    "cache": ("dynamic", "static"),
    "rotate": ("at-write", "at-read"),
    "beyond": ("error", "clip", "interpolate"),
    "layout": get_args(LayoutName),
}

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, kw_only=True)
class ConvertOptions:
    """What ``posexport convert`` may be told; the defaults are the right choice for most."""

    load: LoadOptions = field(default_factory=LoadOptions)
    opset: int | None = None
    max_length: int | None = None
    beyond: Beyond = "error"
    #: how a decoder keeps past tokens, and when it rotates keys
    cache: "CacheName" = "dynamic"
    rotate: "Rotate" = "at-write"
    #: whose files the directory looks like (`posexport.export.layouts`)
    layout: LayoutName = "bundle"
    #: ``cpu`` and ``cuda``: with operators that only ONNX Runtime has
    target: "TargetName" = "portable"
    lowering: str = "auto"
    inline: bool = False
    precision: PrecisionOptions = field(default_factory=PrecisionOptions)
    #: further precisions, for a layout whose directories hold several
    variants: tuple[PrecisionOptions, ...] = ()
    #: texts, one a line, that static scales of activations are measured on
    calibrate: Path | None = None
    #: texts, one a line, on which a precision below float32 is compared with float32
    texts: Path | None = None
    #: a ``tokenizer.json`` for a source that brings none, or the tokenizer object of a transformers model
    tokenizer: Any = None
    #: that it is proven on; None: the one of the target where that loads, else the CPU
    provider: str | None = None
    lengths: Sequence[int] | None = None
    threads: int = 0
    verify: bool = True
    keep: bool = False
    force: bool = False

    def __post_init__(self) -> None:
        for name, known in _CHOICES.items():
            check_choice(name, getattr(self, name), known)
        _check_precisions([self.precision, *self.variants], self.layout)
        if self.calibrate is not None and not any(each.by_rows for each in (self.precision, *self.variants)):
            raise PosexportError(
                f"--calibrate measures scales of int8 activations, got --precision {self.precision.name}"
                f"{' --weight-only' if self.precision.weight_only else ''}; give --precision int8, or leave it out"
            )
        if self.texts is not None and all(each.name == FP32.name for each in (self.precision, *self.variants)):
            raise PosexportError(
                "--texts measures what a precision costs against float32, got --precision fp32; give another, such as "
                "int8, or leave --texts out"
            )


def _check_precisions(precisions: Sequence[PrecisionOptions], layout: LayoutName) -> None:
    """PosexportError where options contradict each other, or the layout holds one precision."""
    from posexport.export.layouts import LAYOUTS

    for each in precisions:
        each.check()
    names = [each.name for each in precisions]
    if len(set(names)) < len(names):
        raise PosexportError(f"each precision once, got --precision {' --precision '.join(names)}")
    several = [name for name, each in LAYOUTS.items() if each.names_precision]
    if len(names) > 1 and layout not in several:
        raise PosexportError(
            f"--precision {' and '.join(names)} in one directory need --layout {' or '.join(several)}, got --layout "
            f"{layout}; convert once for each precision otherwise"
        )


class Written(NamedTuple):
    """What was written for one precision: its manifest, before files are listed, and its proof if it was proven."""

    manifest: Manifest
    report: "Report | None"

    @property
    def verdict(self) -> str:
        """The proof in words, as `Conversion.verdict` has it."""
        from posexport.parity.report.verdict import verdict

        return verdict(self.report).words


@dataclass(frozen=True)
class Conversion:
    """The result of `posexport.convert`.

    Attributes:
        output: the bundle's directory.
        manifest: what the bundle is; None where parity was missed and nothing was written.
        report: the proof; None where nothing was verified.
        remarks: sentences about the source and the proof, as the command line prints them on stderr.
        variants: manifest and proof of every further precision, by its name.
    """

    output: Path
    manifest: Manifest | None
    report: "Report | None"
    remarks: tuple[str, ...] = ()
    variants: "dict[str, Written]" = field(default_factory=dict)

    @property
    def good(self) -> bool:
        """Proven, or not asked to be."""
        reports = [self.report, *(variant.report for variant in self.variants.values())]
        return all(report is None or report.passed for report in reports)

    @property
    def verdict(self) -> str:
        """The proof in words: ``proven``, or what is less than that and why."""
        from posexport.parity.report.verdict import verdict

        return verdict(self.report).words

    def to_json(self) -> str:
        """One JSON document."""
        return json.dumps(
            {
                "bundle": str(self.output) if self.manifest else None,
                "verdict": self.verdict,
                "good": self.good,
                "remarks": self.remarks,
                "manifest": msgspec.to_builtins(self.manifest),
                "parity": msgspec.to_builtins(self.report),
                "variants": {
                    name: {"manifest": msgspec.to_builtins(each.manifest), "parity": msgspec.to_builtins(each.report)}
                    for name, each in self.variants.items()
                },
            }
        )

    def to_text(self) -> str:
        """The table of the proof, and where the bundle is."""
        from posexport.parity.report.point_table import plain

        lines = [] if self.report is None else [plain(self.report)]
        if self.manifest is None:
            lines.append(f"nothing was written to {self.output}; --keep writes it anyway, marked as not proven")
        else:
            size = sum(entry.size for entry in self.manifest.files.values())
            limits = _up_to(self.manifest)
            lines.append(f"{self.output}: {size_text(size)}, opset {self.manifest.opset}, {self.verdict}{limits}")
            lines += [f"  {name}: {each.verdict}" for name, each in self.variants.items()]
        return "\n".join(lines)


def _up_to(manifest: Manifest) -> str:
    """How far the proof of a user's module went, where it takes inputs that are longer still, or may."""
    longest, envelope = manifest.parity and manifest.parity.longest, manifest.envelope
    end = envelope.limit if SEQUENCE in envelope.limited_axes else None
    long = any(SEQUENCE in spec.axes for spec in manifest.inputs)
    unlimited = manifest.source.kind == "python" and long and longest != end
    if not manifest.proven or longest is None or not unlimited:
        return ""
    return f" up to {longest} tokens"


def convert(
    argument: "str | nn.Module",
    output: Path,
    options: ConvertOptions | None = None,
    *,
    progress: Progress | None = None,
    remark: Callable[[str], None] = lambda _: None,
) -> Conversion:
    """Convert ``argument`` to a bundle at ``output``: what `posexport.convert` does.

    ``remark`` is told, in sentences, what a user should know beside the result. A bundle that misses parity is not
    written, unless ``options.keep``; what was at ``output`` before then stays.

    Raises:
        PosexportError: what cannot be done and why, in one sentence.
    """
    options = options or ConvertOptions()
    variants: dict[str, Written] = {}
    provider, missing = _provider(options)  # or that it does not load would be known only after the export
    remarks: list[str] = []

    def tell(sentence: str) -> None:
        # several precisions of one source say the same of it
        if sentence not in remarks:
            remarks.append(sentence)
            remark(sentence)

    try:
        with staged(output, force=options.force) as directory:
            first, *others = _into(directory, argument, replace(options, provider=provider), progress, tell)
            manifest = seal(directory, first.manifest, [each.manifest for each in others], (PARITY, SAMPLE))
            report, variants = first.report, {each.manifest.precision: each for each in others}
    except _MissedError as missed:
        manifest, report = None, missed.report
    if missing and report is not None:
        proof = "proven" if manifest is not None and manifest.proven else "checked"
        tell(f"{proof} on {provider}; {missing}")
    return Conversion(output, manifest, report, tuple(remarks), variants)


def _provider(options: ConvertOptions) -> tuple[str, str]:
    """The provider to prove on, and why it is not the target's own; one that was asked for must load."""
    if options.provider is not None:
        asked = provider_named(options.provider)
        if options.verify and not asked.built_in:
            check_loads(options.provider)
        return options.provider, ""
    record = PROVIDERS.get(options.target, CPU)
    if record.built_in or not options.verify:
        return DEFAULT_PROVIDER, ""
    try:
        check_loads(record.name)
    except PosexportError as err:
        return DEFAULT_PROVIDER, f"{record.name} did not load here: {err}"
    return record.name, ""


class _MissedError(Exception):
    """Leaves the staging block, so that nothing gets into place."""

    def __init__(self, report: "Report") -> None:
        super().__init__()
        self.report = report


def _into(
    directory: Path,
    argument: "str | nn.Module",
    options: ConvertOptions,
    progress: Progress | None,
    remark: Callable[[str], None],
) -> list[Written]:
    """All of a bundle's files, in ``directory``, for every precision in turn."""
    from posexport.sources.transformers_model import as_checkpoint, name_of

    with as_checkpoint(argument, options.tokenizer) as named:
        if named is not argument and hasattr(options.tokenizer, "save_pretrained"):
            options = replace(options, tokenizer=None)
        name = None if named is argument else name_of(argument)
        written = [_write(directory, named, options, progress, remark, name=name)]
        for each in options.variants:
            variant = replace(options, precision=each, variants=())
            written.append(_write(directory, named, variant, progress, remark, name=name, variant=each.name))
        return written


def _write(
    directory: Path,
    argument: "str | nn.Module",
    options: ConvertOptions,
    progress: Progress | None,
    remark: Callable[[str], None],
    *,
    name: str | None = None,
    variant: "PrecisionName | None" = None,
) -> Written:
    """The files of the bundle of a source that `prepare` takes; ``name``: what to call it, if not its own.

    ``variant``: the precision, where files of another one are in ``directory``.
    """
    from posexport.export import layouts, negotiate
    from posexport.export.build import build
    from posexport.lowering import plan
    from posexport.parity.axes import check_axes
    from posexport.parity.run.emulation import emulated_if, loads
    from posexport.precision.half.ports import with_precision
    from posexport.precision.result import check_quantized
    from posexport.sources.mapped import drop
    from posexport.sources.prepare import prepare

    tell = progress or (lambda *_: None)
    layout = layouts.LAYOUTS[options.layout]
    opset = negotiate.opset(
        options.opset,
        static_cache=options.cache == "static",
        made_for=options.target,
        blocked=options.precision.blocked and "MatMulNBits" not in layout.microsoft,
    )
    plan.check_name(options.lowering)
    tell(0, 2, "loading")
    source = prepare(
        argument,
        options.load,
        beyond=options.beyond,
        max_length=options.max_length,
        cache=options.cache,
        rotation=options.rotate,
    )
    if name is not None:
        source = replace(source, name=name)
    source = layout.arranged(source, options.precision.precision)
    for sentence in source.remarks:
        remark(sentence)
    if options.tokenizer is not None:
        source = with_tokenizer(source, Path(options.tokenizer))
    options, texts = _calibration_texts(source, options)
    tell(1, 2, "exporting")
    recipe, store = _recipe(source, options, opset), layout.store(source)
    wanted = options.precision.precision
    # texts that static scales are measured on must fit them at least
    compared = None if wanted == FP32 else options.texts or (options.precision.calibration and options.calibrate)
    # the graph in float32, which a quantized one is proven by; a folder of its own, for it is not sealed
    float32 = directory / FLOAT32 if compared or (options.verify and wanted.quantized) else None
    computed = wanted.dtype.precision
    built = [
        build(
            graph,
            directory / file,
            opset=opset,
            ir_version=negotiate.IR_VERSION,
            target=options.target,
            lowering=options.lowering,
            inline=options.inline,
            precision=options.precision,
            clients_have=layout.microsoft,
            recipe=recipe,
            store=store,
            float32=None if float32 is None else float32 / file,
            calibration=_calibration(graph, options, texts),
        )
        for file, graph in source.graphs.items()
    ]
    check_quantized(options.precision, [graph.precision for graph in built])
    for sentence in dict.fromkeys(each for graph in built for each in graph.precision.remarks):
        remark(sentence)
    source = with_precision(source, options.precision)
    if not options.verify:
        # nothing asks the module for its numbers any more, and the check's session holds the same
        drop(source.module.parameters())
    model, parts = model_of(directory, source.parts), [part.spec for part in source.parts]
    with emulated_if(None if loads(CPU.name, computed) else computed, model, parts) as graph:
        check_axes(source, graph)
    report = _prove(source, directory, options, progress, variant, float32) if options.verify else None
    on_texts = None
    if float32 is not None and compared:
        on_texts = _on_texts(source, directory, float32, compared, options, progress)
    if float32 is not None:
        shutil.rmtree(float32)
    if report is not None and not report.passed and not options.keep:
        raise _MissedError(report)
    for name, path in source.files.items():
        copy = directory / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy_without_paths(path, copy)
    layout.write(directory, source)
    return Written(_manifest(source, built, recipe, report, on_texts), report)


def _calibration_texts(source: "Source", options: ConvertOptions) -> "tuple[ConvertOptions, list[Feeds]]":
    """The texts of ``--calibrate`` as the source's inputs, and options that record their sha256."""
    if options.calibrate is None or not options.precision.by_rows:
        return options, []
    from posexport.parity.agreement.texts import calibration_feeds

    feeds = calibration_feeds(source, options.calibrate)
    sha256 = hashlib.sha256(options.calibrate.read_bytes()).hexdigest()
    precision = msgspec.structs.replace(options.precision, calibration=sha256)
    return replace(options, precision=precision), feeds


def _calibration(graph: "Source", options: ConvertOptions, texts: "list[Feeds]") -> "Calibration | None":
    """What int8 activations of ``graph`` are measured on: texts, or random tokens where it reads tokens alone."""
    if not options.precision.by_rows:
        return None
    from posexport.parity.agreement.random_rows import random_rows
    from posexport.precision.calibration import Calibration
    from posexport.runtime.providers import make_session

    def open_graph(path: Path) -> Any:
        return make_session(path, threads=options.threads).run

    feeds = texts or random_rows(graph, graph.envelope)
    return Calibration(feeds, open_graph) if feeds else None


def _prove(
    source: "Source",
    directory: Path,
    options: ConvertOptions,
    progress: Progress | None,
    variant: "PrecisionName | None" = None,
    float32: Path | None = None,
) -> "Report":
    """The proof, with its records in ``directory``: every point, and the sample for machines without PyTorch.

    ``float32``: the folder of the graphs that a quantized one is made from.
    """
    from posexport.parity.agreement.agree import agree
    from posexport.parity.prove import prove
    from posexport.parity.run.sample import SampleWriter

    sample = SampleWriter()
    model, precision = model_of(directory, source.parts), options.precision.precision
    how: dict[str, Any] = {
        "provider": options.provider or DEFAULT_PROVIDER,
        "lengths": options.lengths,
        "threads": options.threads,
        "progress": progress,
        "sample": sample,
    }
    if precision.quantized and float32 is not None:
        report = agree(source, model, model_of(float32, source.parts), options.precision, **how)
    else:
        report = prove(source, model, precision=precision.dtype.precision, **how)
    (directory / variant_file(PARITY, variant)).write_bytes(report.to_json())
    sample.save(directory, variant_file(SAMPLE, variant))
    return report


def _on_texts(
    source: "Source",
    directory: Path,
    float32: Path,
    texts: Path,
    options: ConvertOptions,
    progress: Progress | None,
) -> TextAgreement:
    """How the graph in ``directory`` agrees with that in ``float32`` on the user's texts."""
    from posexport.parity.agreement.limits import check_static
    from posexport.parity.agreement.texts import on_texts
    from posexport.parity.run.emulation import computes, emulated_if, widened

    provider, computed = options.provider or DEFAULT_PROVIDER, options.precision.precision.dtype.precision
    parts = [part.spec for part in source.parts]
    # a provider that computes in float32 would not show what others round
    emulated = None if computes(provider, computed) else computed
    with emulated_if(emulated, model_of(directory, source.parts), parts) as graph:
        agreement = on_texts(
            widened(source),
            graph,
            model_of(float32, source.parts),
            texts,
            provider=provider,
            threads=options.threads,
            progress=progress,
        )
    if options.precision.calibration and options.verify and not options.keep:
        check_static(agreement, texts)
    return agreement


def _recipe(source: "Source", options: ConvertOptions, opset: int) -> Recipe:
    from posexport.sources.prepare import recorded

    return Recipe(
        **recorded(options.load, source),
        cache=options.cache,
        rotation=options.rotate,
        beyond=options.beyond,
        max_length=options.max_length,
        target=options.target,
        lowering=options.lowering,
        opset=opset,
        inline=options.inline,
        layout=options.layout,
        precision=options.precision,
    )


def _cost(
    built: "Sequence[Built]", recipe: Recipe, report: "Report | None", on_texts: TextAgreement | None
) -> PrecisionCost | None:
    if recipe.precision.name == FP32.name:
        return None
    now, before = (sum(graph.weights[index] for graph in built) for index in (0, 1))
    return PrecisionCost(
        weights=now / before if before else 1.0,
        on_grid={} if report is None else report.agreement,
        on_texts=on_texts,
    )


def _manifest(
    source: "Source",
    built: "Sequence[Built]",
    recipe: Recipe,
    report: "Report | None",
    on_texts: TextAgreement | None = None,
) -> Manifest:
    from posexport.parity.report.verdict import verdict

    proven = verdict(report).proven
    return Manifest(
        posexport=__version__,
        source=SourceInfo(name=source.public_name, kind=source.kind, sha256=source.sha256, revision=source.revision),
        task=source.task,
        encoding=source.encoding,
        encodings=source.encodings,
        envelope=Limits.of(source.envelope, source.plan),
        inputs=source.inputs,
        outputs=source.outputs,
        parts=[part.spec for part in source.parts],
        opset=built[0].opset,
        ir_version=built[0].ir_version,
        functions=sorted({name for graph in built for name in graph.functions}),
        target=recipe.target,
        precision=recipe.precision.name,
        stored={name: words for graph in built for name, words in graph.precision.classes.items()},
        cost=_cost(built, recipe, report, on_texts),
        recipe=recipe,
        lowerings=_lowerings(built),
        passes=_passes(built),
        files={},
        tools=_tools(),
        parity=None if report is None else report.summary(),
        proven=proven,
        proven_on=[report.provider] if report is not None and proven and not report.emulated else [],
        proven_in_emulation=proven and report is not None and report.emulated,
        checked_lengths=[] if report is None else report.lengths,
        coverage=[] if report is None else report.coverage,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )


def _lowerings(built: "Sequence[Built]") -> dict[str, LoweringSpec]:
    """What each type of node was lowered to, with the nodes of all graphs."""
    lowerings: dict[str, LoweringSpec] = {}
    for graph in built:
        for name, chosen in graph.chosen.items():
            before = lowerings[name].nodes if name in lowerings else 0
            lowerings[name] = LoweringSpec(
                lowering=chosen.lowering, nodes=before + chosen.nodes, refused=chosen.refused
            )
    return lowerings


def _passes(built: "Sequence[Built]") -> dict[str, PassSpec]:
    """What each graph pass did, in all graphs together."""
    results = {name: [graph.passes[name] for graph in built] for name in built[0].passes}
    return {
        name: PassSpec(
            nodes=sum(result.nodes for result in each),
            refused=list(dict.fromkeys(reason for result in each for reason in result.refused)),
        )
        for name, each in results.items()
    }


def _tools() -> dict[str, str]:
    """Versions of what made the bundle."""
    versions = {"python": platform.python_version()}
    for name in _TOOLS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions
