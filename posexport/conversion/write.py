"""The files of a bundle in one precision: prepare the source, export its graphs, prove them."""

import gc
import json
import shutil
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from posexport.base.options.recipe import ADAPTER_INPUTS
from posexport.base.system.freed_memory import returned_at_once, trim
from posexport.base.targets.precisions import FP32
from posexport.base.targets.providers import CPU
from posexport.conversion.graphs import FLOAT32, Export, calibration_texts
from posexport.conversion.manifest import manifest_of, recipe_of
from posexport.conversion.options import ConvertOptions, for_stored_rows
from posexport.conversion.proof import OnTexts, agreement_on_texts, prove
from posexport.conversion.reduced import Reduced, reduced_model
from posexport.conversion.result import Failed, MissedError, Written
from posexport.conversion.shown_axes import shown_by_graph, shown_by_sizes, shown_by_tables, shown_by_trace
from posexport.conversion.tokenizer import with_tokenizer_made
from posexport.errors import PosexportError
from posexport.run import preparation
from posexport.run.bundle.manifest import SAMPLE, model_of
from posexport.run.bundle.variants import variant_file
from posexport.run.bundle.write import copy_without_paths
from posexport.sources.load_options import Shown

if TYPE_CHECKING:
    from torch import nn

    from posexport.base.options.recipe import Recipe
    from posexport.base.targets.precisions import PrecisionName
    from posexport.conversion.export.build import Built
    from posexport.conversion.export.layout import Layout
    from posexport.proof.proof import Progress
    from posexport.proof.report.report import Report
    from posexport.sources.source import Source


#: conversions of one module, each with more known of its axes
_MOST = 4


@dataclass(frozen=True, kw_only=True)
class Job:
    """The files of a bundle in one precision.

    Attributes:
        directory: where they are written.
        name: what the source is called in place of its name.
        variant: the precision, where ``directory`` has files of another one.
        before_proof: is called when the graphs are there, and may raise.
    """

    directory: Path
    argument: "str | nn.Module"
    options: ConvertOptions
    progress: "Progress | None" = None
    remark: Callable[[str], None]
    name: str | None = None
    variant: "PrecisionName | None" = None
    before_proof: Callable[[], None] = lambda: None


def write(job: Job) -> Written:
    """Write the files, with the proof.

    A user's decoder without a named task that cannot be traced with a KV cache is converted for features. A module with
    a graph that fails is converted with what this shows: for multiples of a number, where it treats other sizes in
    another way; for one size of an axis that it unrolls.

    Raises:
        MissedError: parity was missed, and ``options`` do not keep a failed bundle.
    """
    written = _with_shown_axes(job)
    if isinstance(written, Written):
        return written
    untraced = written.error
    sentence = (
        f"converted for features instead, without a KV cache: with one {untraced}; the task text-generation insists on "
        "it"
    )
    try:
        written = _with_shown_axes(replace(job, options=msgspec.structs.replace(job.options, task="features")))
    except MissedError:
        job.remark(sentence)
        raise
    except PosexportError as err:  # an option may need the cache, or the module cannot be traced at all
        raise untraced from err
    assert isinstance(written, Written)
    job.remark(sentence)
    return written


def _with_shown_axes(job: Job) -> Written | Failed:
    """Tries again with what each graph that failed shows of the axes; `Failed` by the KV cache alone."""
    # only a module gets another graph; what was said of the one before is then not true of it
    of_module = not isinstance(job.argument, str) or ".py:" in job.argument
    shown, remarks, first = Shown(), dict[str, str](), None
    for _ in range(_MOST):
        heard: list[str] = []
        try:
            with returned_at_once():
                result = _write(replace(job, remark=heard.append) if of_module else job, shown)
        except Exception as err:
            if first is not None and isinstance(err, PosexportError | MissedError):
                break
            _say(job, heard)
            raise
        if isinstance(result, Written) or result.shown is None:
            _say(job, [*heard, *(remarks.values() if isinstance(result, Written) else ())])
            return result
        first = first or (without_locals(result.error), [*heard, *result.reasons])
        _give_back()  # the trace that failed, with its weights
        shown, remarks = result.shown, remarks | dict(result.remarks)
    assert first is not None
    _say(job, first[1])
    raise first[0]  # nothing that was shown helps


def _say(job: Job, sentences: Iterable[str]) -> None:
    for sentence in sentences:
        job.remark(sentence)


def _give_back() -> None:
    """Free what only cycles hold, and return it to the system."""
    gc.collect()
    trim()


def without_locals(error: Exception) -> Exception:
    """``error``, whose traceback keeps no module, trace or graph of the functions that it left."""
    chain: list[BaseException | None] = [error]
    seen = set[int]()
    while chain:  # which may be a cycle
        one = chain.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            traceback.clear_frames(one.__traceback__)
            chain += [one.__cause__, one.__context__]
    return error


def _write(job: Job, shown: Shown) -> Written | Failed:
    """As `write`, for the task that the options or the source name, with ``shown`` of its axes."""
    from posexport.conversion.export.half_inputs import with_precision
    from posexport.conversion.export.layout import layout_named
    from posexport.conversion.export.messages import NotTracedError
    from posexport.conversion.proof import explained, reasons
    from posexport.graph.lowering import plan
    from posexport.graph.passes.graph_pass import NotInsertedError
    from posexport.proof.grid.grid import grid

    # the options, as far as they can be checked without the source
    options, directory, tell = job.options, job.directory, job.progress or (lambda *_: None)
    layout = layout_named(options.layout)
    opset = _opset(options, layout)
    plan.check_name(options.lowering)
    # the source, and what the user should know about it
    tell(0, 2, "loading")
    source, tokenizer = with_tokenizer_made(_prepared(job, layout, shown), directory)
    options = for_stored_rows(options, source.public_name, source.stored_rows)
    job = replace(job, options=options)
    for sentence in [*source.remarks, *_remarks_on_files(source)]:
        job.remark(sentence)
    if options.verify and options.lengths:
        grid(source.limits, source.inputs, lengths=options.lengths)  # a bad length is told before the export
    for note in source.notes:
        tell(1, 2, note)
    # its graphs
    texts = calibration_texts(source, options.calibrate) if options.reads_texts else []
    tell(1, 2, "exporting")
    recipe = recipe_of(source, options, opset)
    compared = _compared_texts(options, recipe)
    export = Export(recipe, layout, texts, options.threads)
    try:
        built = export(source, directory, with_float32=compared is not None)
    except (NotTracedError, NotInsertedError) as err:
        if (failed := _failed_export(source, options, shown, err)) is not None:
            return failed
        raise
    source = msgspec.structs.replace(source, turns=[turn for graph in built for turn in graph.written.turns])
    _check_unpadding(recipe, built)
    _check_precision(recipe, built, job.remark)
    reduced = reduced_model(source, export, options.proof, job.remark) if options.verify else None
    source = with_precision(source, recipe)
    # their proof
    job.before_proof()
    try:
        _check_least(source, directory, recipe, built)
        report, on_texts = _prove(job, source, compared, reduced)
    except (MissedError, PosexportError) as err:
        if (failed := shown_by_graph(source, built, shown, err) or shown_by_sizes(source, shown, err)) is not None:
            return replace(failed, reasons=[*reasons(built, err.report)] if isinstance(err, MissedError) else [])
        if isinstance(err, MissedError):
            _say(job, reasons(built, err.report))
            raise
        raise explained(source.name, built, err) from err
    # the files next to them
    _copy_files(source, directory)
    layout.write(directory, source)
    manifest = manifest_of(source, directory, built, recipe, report, on_texts)
    return Written(msgspec.structs.replace(manifest, tokenizer=tokenizer), report)


def _failed_export(source: "Source", options: ConvertOptions, shown: Shown, err: PosexportError) -> Failed | None:
    """What else to try after the trace; None: nothing."""
    from posexport.conversion.export.messages import FixedAxisError

    failed = shown_by_trace(source, shown, err) if isinstance(err, FixedAxisError) else None
    failed = failed or shown_by_tables(source, shown, err)
    by_default = options.task is None and source.kind == "python" and source.limits.kv_cache
    return failed or (Failed(err) if by_default else None)


def _remarks_on_files(source: "Source") -> list[str]:
    """Sentences on settings in the source's files that the runtime does not follow."""
    remarks: list[str] = []
    if any(spec.role == "values" for spec in source.inputs):  # pictures or sound
        remarks += preparation.remarks(source.files)
    if source.limits.kv_cache or source.parts:
        from posexport.run.generate import file as generation_file

        remarks += generation_file.remarks(source.files)
    return remarks


def _opset(options: ConvertOptions, layout: "Layout") -> int:
    """The opset of the options, or the lowest that has the operators they need."""
    from posexport.conversion.export import negotiate

    return negotiate.opset(
        options.opset,
        static_cache=options.cache == "static",
        made_for=options.target,
        blocked=options.blocked and "MatMulNBits" not in layout.microsoft,
    )


def _prepared(job: Job, layout: "Layout", shown: Shown) -> "Source":
    """The source as the options and the layout want it."""
    from posexport.sources.prepare import prepare

    options = job.options
    tokenizer = None if options.tokenizer is None else Path(options.tokenizer)
    source = prepare(job.argument, replace(options.load, name=job.name, shown=shown), options, tokenizer, lazy=True)
    return layout.arranged(source, options.record, in_files=options.adapter_format == ADAPTER_INPUTS)


def _compared_texts(options: ConvertOptions, recipe: "Recipe") -> Path | None:
    """The texts on which a precision below float32 is compared with it; static scales must fit theirs at least."""
    texts = options.evaluate or (options.calibrate if recipe.static else None)
    return None if texts is None or recipe.precision == FP32.name else Path(texts)


def _check_unpadding(recipe: "Recipe", built: "list[Built]") -> None:
    """PosexportError for ``--unpad`` without a graph that has unpadding."""
    results = [graph.passes["unpadding"] for graph in built if "unpadding" in graph.passes]
    if recipe.unpad and not any(result.nodes for result in results):
        reasons = dict.fromkeys(reason for result in results for reason in result.rejected)
        raise PosexportError(f"--unpad leaves no padding out here: {'; '.join(reasons)}; leave it out")


def _check_precision(recipe: "Recipe", built: "list[Built]", remark: Callable[[str], None]) -> None:
    """Checks that a quantized precision quantized something, and remarks once on each weight that it left."""
    from posexport.graph.precision.selection import check_quantized, larger

    results = [graph.precision for graph in built]
    check_quantized(recipe, results)
    for sentence in dict.fromkeys(text for result in results for text in result.remarks):
        remark(sentence)
    if sentence := larger(results):
        remark(sentence)


def _prove(
    job: Job, source: "Source", compared: Path | None, reduced: Reduced | None
) -> "tuple[Report | None, OnTexts | None]":
    """The proof of the graphs, and their agreement with those in `FLOAT32` on the texts ``compared``.

    Raises MissedError where parity was missed, and ``options`` do not keep a failed bundle.
    """
    from posexport.sources.memory_mapped import SHARED, drop, size_of

    if source.by_trial or size_of(source.module.parameters()) > SHARED:
        _give_back()  # what the trial calls and the trace took, with its weights
    else:
        trim()
    options, directory = job.options, job.directory
    if not options.verify:
        # nothing asks the module for its numbers any more, and the check's session holds the same
        drop(source.module.parameters())
    if source.by_trial or not options.verify:  # the points of a definition's proof have sizes of all axes too
        _check_axes(source, directory, options)
    report = prove(source, directory, options, job.progress, job.variant, reduced) if options.verify else None
    on_texts = None
    if compared is not None:
        on_texts = agreement_on_texts(source, directory, directory / FLOAT32, compared, options, job.progress)
        shutil.rmtree(directory / FLOAT32)
    if report is not None and not report.passed and not options.keep_failed:
        raise MissedError(report)
    if report is not None and report.points and not (directory / variant_file(SAMPLE, job.variant)).exists():
        job.remark(
            "the inputs of a single row are too large for the bundle's sample: it has none, and posexport verify needs "
            "--against SOURCE"
        )
    return report, on_texts


def _copy_files(source: "Source", directory: Path) -> None:
    """Copies the source's files (tokenizer, configuration) without paths of this machine."""
    for file, path in source.files.items():
        copy = directory / file
        if path == copy:
            continue  # made for this bundle
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy_without_paths(path, copy)
    if source.labels:
        config = json.loads((directory / "config.json").read_bytes())
        config["id2label"] = dict(enumerate(source.labels))
        (directory / "config.json").write_text(
            json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8", newline="\n"
        )


def _check_least(source: "Source", directory: Path, recipe: "Recipe", built: "list[Built]") -> None:
    """That a float32 graph runs at the least sizes, where a line of its module treats these in another way."""
    from posexport.proof.axes import check_least

    if recipe.precision == FP32.name and any(graph.written.least for graph in built):
        check_least(source, model_of(directory, source.parts))


def _check_axes(source: "Source", directory: Path, options: ConvertOptions) -> None:
    """That the graphs have the axes that they were exported with."""
    from posexport.proof.axes import check_axes
    from posexport.proof.subjects.half import emulated_if, loads

    computed = options.computed
    model, parts = model_of(directory, source.parts), source.part_specs
    with emulated_if(None if loads(CPU.name, computed) else computed, model, parts) as graph:
        # float weights would be a second model in memory; products of whole numbers take six times as long without
        check_axes(source, graph, prepacking=options.weight_bits is not None)
