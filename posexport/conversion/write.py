"""The files of a bundle in one precision: prepare the source, export its graphs, prove them."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from posexport.bundle.copied import copy_without_paths
from posexport.bundle.manifest import model_of
from posexport.conversion.calibrate import calibration, calibration_texts
from posexport.conversion.manifest import manifest_of, recipe_of
from posexport.conversion.options import ConvertOptions
from posexport.conversion.proof import agreement_on_texts, proof
from posexport.conversion.result import MissedError, Written
from posexport.targets.precisions import FP32
from posexport.targets.providers import CPU
from posexport.tokenizer import with_tokenizer

if TYPE_CHECKING:
    from torch import nn

    from posexport.export.build import Built
    from posexport.export.layouts.layout import Layout
    from posexport.parity.grid.inputs import Feeds
    from posexport.parity.proof import Progress
    from posexport.recipe import Recipe
    from posexport.sources.source import Source
    from posexport.targets.precisions import PrecisionName

#: the folder, while a conversion is under way, of the graphs that quantized ones are made from
FLOAT32 = ".float32"


def write(
    directory: Path,
    argument: "str | nn.Module",
    options: ConvertOptions,
    progress: "Progress | None",
    remark: Callable[[str], None],
    *,
    name: str | None = None,
    variant: "PrecisionName | None" = None,
) -> Written:
    """The files of the bundle of a source that `prepare` takes; ``name``: what to call it, if not its own.

    ``variant``: the precision, where files of another one are in ``directory``.

    Raises:
        MissedError: parity was missed, and ``options`` do not keep such a bundle.
    """
    from posexport.export import layouts, negotiate
    from posexport.lowering import plan
    from posexport.precision.half.ports import with_precision
    from posexport.precision.result import check_quantized, larger
    from posexport.sources.mapped import drop

    tell = progress or (lambda *_: None)
    layout = layouts.LAYOUTS[options.layout]
    opset = negotiate.opset(
        options.opset,
        static_cache=options.cache == "static",
        made_for=options.target,
        blocked=options.blocked and "MatMulNBits" not in layout.microsoft,
    )
    plan.check_name(options.lowering)
    tell(0, 2, "loading")
    source = _prepared(argument, options, layout, name)
    for sentence in source.remarks:
        remark(sentence)
    texts = calibration_texts(source, options)
    tell(1, 2, "exporting")
    recipe = recipe_of(source, options, opset)
    # texts that static scales are measured on must fit them at least
    compared = options.texts or (options.calibrate if recipe.static else None)
    compared = None if compared is None or recipe.precision == FP32.name else Path(compared)
    # the graph in float32, which texts compare another one with; a folder of its own, for it is not sealed
    float32 = directory / FLOAT32 if compared else None
    built = _exported(source, directory, options, layout, recipe, float32, texts)
    check_quantized(recipe, [graph.precision for graph in built])
    for sentence in dict.fromkeys(each for graph in built for each in graph.precision.remarks):
        remark(sentence)
    if sentence := larger([graph.precision for graph in built]):
        remark(sentence)
    source = with_precision(source, recipe)
    if not options.verify:
        # nothing asks the module for its numbers any more, and the check's session holds the same
        drop(source.module.parameters())
    _check_axes(source, directory, options)
    report = proof(source, directory, options, progress, variant) if options.verify else None
    on_texts = None
    if compared and float32:
        on_texts = agreement_on_texts(source, directory, float32, compared, options, progress)
        shutil.rmtree(float32)
    if report is not None and not report.passed and not options.keep:
        raise MissedError(report)
    for file, path in source.files.items():
        copy = directory / file
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy_without_paths(path, copy)
    layout.write(directory, source)
    return Written(manifest_of(source, directory, built, recipe, report, on_texts), report)


def _prepared(argument: "str | nn.Module", options: ConvertOptions, layout: "Layout", name: str | None) -> "Source":
    """The source as the options and the layout want it."""
    from posexport.sources.prepare import prepare

    source = prepare(argument, options.load, options)
    if name is not None:
        source = replace(source, name=name)
    source = layout.arranged(source, options.record)
    return source if options.tokenizer is None else with_tokenizer(source, Path(options.tokenizer))


def _exported(
    source: "Source",
    directory: Path,
    options: ConvertOptions,
    layout: "Layout",
    recipe: "Recipe",
    float32: Path | None,
    texts: "list[Feeds]",
) -> "list[Built]":
    """The source's graphs in ``directory``, and in ``float32`` what quantized ones are made from."""
    from posexport.export import negotiate
    from posexport.export.build import build

    store = layout.store(source)
    return [
        build(
            graph,
            directory / file,
            opset=recipe.opset,
            ir_version=negotiate.IR_VERSION,
            target=recipe.target,
            lowering=recipe.lowering,
            inline=recipe.inline,
            precision=recipe,
            clients_have=layout.microsoft,
            recipe=recipe,
            store=store,
            float32=None if float32 is None else float32 / file,
            calibration=calibration(graph, options, texts),
        )
        for file, graph in source.graphs.items()
    ]


def _check_axes(source: "Source", directory: Path, options: ConvertOptions) -> None:
    """That the graphs have the axes that they were exported with."""
    from posexport.parity.axes import check_axes
    from posexport.parity.subjects.half import emulated_if, loads

    computed = options.computed
    model, parts = model_of(directory, source.parts), [part.spec for part in source.parts]
    with emulated_if(None if loads(CPU.name, computed) else computed, model, parts) as graph:
        check_axes(source, graph)
