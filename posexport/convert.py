"""The main job: load a source, export it, prove it, write the bundle."""

import contextlib
import datetime
import importlib.metadata
import json
import platform
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from posexport import __version__
from posexport.bundle.manifest import ChoiceSpec, Manifest, SourceInfo, model_of
from posexport.bundle.write import seal, staged
from posexport.runtime.providers import check_loads, execution_provider
from posexport.sources.load import LoadOptions
from posexport.spec import SEQUENCE, Beyond
from posexport.tokenizer import with_tokenizer

if TYPE_CHECKING:
    from posexport.export.build import Built
    from posexport.lowering.target import TargetName
    from posexport.models.caching import Rotate
    from posexport.parity.report import Report
    from posexport.sources.base import Source
    from posexport.sources.cached import CacheName

PARITY = "parity.json"
_TOOLS = ("torch", "onnx", "onnx-ir", "onnxscript", "onnxruntime-gpu", "onnxruntime", "numpy")

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, kw_only=True)
class ConvertOptions:
    """What ``posexport convert`` may be told; the defaults are the right choice for most."""

    load: LoadOptions = field(default_factory=LoadOptions)
    opset: int | None = None
    max_length: int | None = None
    beyond: Beyond = "error"
    #: how a decoder keeps past tokens, and when it rotates keys
    cache: "CacheName" = "growing"
    rotate: "Rotate" = "at-write"
    #: ``genai``: with what onnxruntime-genai needs
    layout: Literal["bundle", "genai"] = "bundle"
    #: ``cpu`` and ``cuda``: with operators that only ONNX Runtime has
    made_for: "TargetName" = "portable"
    lowering: str = "auto"
    inline: bool = False
    #: a ``tokenizer.json`` for a source that brings none
    tokenizer: Path | None = None
    provider: str = "cpu"
    lengths: Sequence[int] | None = None
    threads: int = 0
    verify: bool = True
    keep: bool = False
    force: bool = False


@dataclass(frozen=True)
class Conversion:
    """What came of it: ``manifest`` is None where parity was missed and nothing was kept."""

    target: Path
    manifest: Manifest | None
    report: "Report | None"

    @property
    def good(self) -> bool:
        """Proven, or not asked to be."""
        return self.report is None or self.report.passed

    def to_json(self) -> str:
        """One JSON document."""
        return json.dumps(
            {
                "bundle": str(self.target) if self.manifest else None,
                "good": self.good,
                "manifest": msgspec.to_builtins(self.manifest),
                "parity": msgspec.to_builtins(self.report),
            }
        )

    def to_text(self) -> str:
        """The table of the proof, and where the bundle is."""
        from posexport.parity.table import plain

        lines = [] if self.report is None else [plain(self.report)]
        if self.manifest is None:
            lines.append(f"nothing was written to {self.target}; --keep keeps a bundle that missed, marked as unproven")
        else:
            size = sum(entry.size for entry in self.manifest.files.values())
            proof = f"proven{_up_to(self.manifest)}" if self.manifest.proven else "NOT proven"
            lines.append(f"{self.target}: {size / 1e6:.1f} MB, opset {self.manifest.opset}, {proof}")
        return "\n".join(lines)


def _up_to(manifest: Manifest) -> str:
    """How far the proof of a user's module went, where it takes inputs that are longer still, or may."""
    longest, envelope = manifest.parity and manifest.parity.longest, manifest.envelope
    end = envelope.limit if SEQUENCE in envelope.limited_axes else None
    long = any(SEQUENCE in spec.axes for spec in manifest.inputs)
    if manifest.source.kind != "python" or longest is None or longest == end or not long:
        return ""
    return f" up to {longest} tokens"


def convert(
    argument: str,
    target: Path,
    options: ConvertOptions | None = None,
    *,
    progress: Progress | None = None,
    remark: Callable[[str], None] = lambda _: None,
) -> Conversion:
    """Convert ``argument`` to a bundle at ``target``.

    ``remark`` is told, in sentences, what a user should know beside the result. A bundle that misses parity is not
    written, unless ``options.keep``; what stood at the target then stays.

    Raises:
        PosexportError: what cannot be done and why, in one sentence.
    """
    options = options or ConvertOptions()
    execution_provider(options.provider)
    if options.verify and options.provider != "cpu":
        check_loads(options.provider)  # or it would be known only after the export
    try:
        with staged(target, force=options.force) as directory:
            manifest, report = _into(directory, argument, options, progress, remark)
    except _MissedError as missed:
        return Conversion(target, None, missed.report)
    return Conversion(target, manifest, report)


class _MissedError(Exception):
    """Leaves the staging block, so that nothing gets into place."""

    def __init__(self, report: "Report") -> None:
        super().__init__()
        self.report = report


def _into(
    directory: Path,
    argument: str,
    options: ConvertOptions,
    progress: Progress | None,
    remark: Callable[[str], None],
) -> tuple[Manifest, "Report | None"]:
    """All of a bundle's files, in ``directory``."""
    from posexport.export import genai, negotiate
    from posexport.export.build import build
    from posexport.lowering import plan
    from posexport.parity.axes import check_axes
    from posexport.sources.cached import cached
    from posexport.sources.extend import extend
    from posexport.sources.load import load
    from posexport.sources.mapped import drop

    tell = progress or (lambda *_: None)
    opset = negotiate.opset(options.opset, static_cache=options.cache == "static", made_for=options.made_for)
    plan.check_name(options.lowering)
    tell(0, 2, "loading")
    source = extend(load(argument, options.load), options.beyond, options.max_length)
    source = cached(source, options.cache, options.rotate)
    if options.layout == "genai":
        genai.check(source)
    for sentence in source.remarks:
        remark(sentence)
    if options.tokenizer is not None:
        source = with_tokenizer(source, options.tokenizer)
    tell(1, 2, "exporting")
    built = [
        build(
            graph,
            directory / file,
            opset=opset,
            ir_version=negotiate.IR_VERSION,
            target=options.made_for,
            lowering=options.lowering,
            inline=options.inline,
        )
        for file, graph in source.graphs.items()
    ]
    if not options.verify:
        # nothing asks the module for its numbers any more, and the check's session holds the same
        drop(source.module.parameters())
    check_axes(source, model_of(directory, source.parts))
    report = _prove(source, directory, options, progress) if options.verify else None
    if report is not None and not report.passed and not options.keep:
        raise _MissedError(report)
    for name, path in source.files.items():
        copy = directory / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    if options.layout == "genai":
        genai.write(directory, source)
    return seal(directory, _manifest(source, built, options, report)), report


def _prove(source: "Source", directory: Path, options: ConvertOptions, progress: Progress | None) -> "Report":
    """The proof, with its records in ``directory``: every point, and the sample for machines without PyTorch."""
    from posexport.parity.run import prove
    from posexport.parity.sample import SampleWriter

    sample = SampleWriter()
    report = prove(
        source,
        model_of(directory, source.parts),
        provider=options.provider,
        lengths=options.lengths,
        threads=options.threads,
        progress=progress,
        sample=sample,
    )
    (directory / PARITY).write_bytes(report.to_json())
    sample.save(directory)
    return report


def _manifest(source: "Source", built: "Sequence[Built]", options: ConvertOptions, report: "Report | None") -> Manifest:
    return Manifest(
        posexport=__version__,
        source=SourceInfo(name=source.name, kind=source.kind, sha256=source.sha256),
        task=source.task,
        encoding=source.encoding,
        encodings=source.encodings,
        envelope=source.envelope,
        inputs=source.inputs,
        outputs=source.outputs,
        providers=[] if report is None else [options.provider],
        parts=[part.spec for part in source.parts],
        opset=built[0].opset,
        ir_version=built[0].ir_version,
        functions=sorted({name for one in built for name in one.functions}),
        made_for=options.made_for,
        lowerings={name: found.lowering for one in built for name, found in one.chosen.items()},
        choices=_choices(built),
        files={},
        tools=_tools(),
        parity=None if report is None else report.summary(),
        proven=report is not None and report.passed,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )


def _choices(built: "Sequence[Built]") -> dict[str, ChoiceSpec]:
    """What each type of node was lowered to, with the nodes of all graphs."""
    found: dict[str, ChoiceSpec] = {}
    for one in built:
        for name, chosen in one.chosen.items():
            before = found[name].nodes if name in found else 0
            found[name] = ChoiceSpec(lowering=chosen.lowering, nodes=before + chosen.nodes, refused=chosen.refused)
    return found


def _tools() -> dict[str, str]:
    """Versions of what made the bundle."""
    found = {"python": platform.python_version()}
    for name in _TOOLS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found
