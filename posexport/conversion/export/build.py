"""All steps from a source to a finished graph, in the order that keeps each step's work."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import onnx_ir as ir

from posexport.base.options.recipe import ADAPTER_INPUTS, Recipe
from posexport.base.spec import CARRIED, ENCODER_SEQUENCE, SEQUENCE
from posexport.base.targets.target import Target
from posexport.conversion.export import context, defaults
from posexport.conversion.export.adapter_files import as_files
from posexport.conversion.export.by_layers.trace import trace_by_layers
from posexport.conversion.export.half_inputs import with_precision
from posexport.conversion.export.layout import BUNDLE, Layout
from posexport.conversion.export.messages import without_onnx_errors
from posexport.conversion.export.negotiate import IR_VERSION
from posexport.conversion.export.save import Store, fill_metadata, save
from posexport.conversion.export.trace import as_traced, trace
from posexport.conversion.export.written import Written, written_by
from posexport.graph.lowering import functions
from posexport.graph.lowering.functions import Chosen
from posexport.graph.ops.operator import DOMAIN
from posexport.graph.passes import pipeline
from posexport.graph.passes.graph_pass import InsertedCache, PassResult
from posexport.graph.passes.padding.unpadding import Unpadding
from posexport.graph.passes.recognise import encoder_states
from posexport.graph.passes.routed_experts import RoutedExperts, route_quantized
from posexport.graph.precision.apply import apply
from posexport.graph.precision.calibration import Calibration
from posexport.graph.precision.selection import PrecisionResult
from posexport.graph.provenance import strip_provenance
from posexport.graph.queries import weight_bytes
from posexport.models.forward_decoder import ForwardDecoder
from posexport.proof.reduced.reduction import Reduction
from posexport.sources.lazy_parameters import materialize
from posexport.sources.source import Source


class _Lowered(NamedTuple):
    """A finished float32 graph, and what was done for it."""

    model: ir.Model
    passes: dict[str, PassResult]
    chosen: dict[str, Chosen]
    made_for: Target

    @property
    def lowerings(self) -> dict[str, str]:
        return {name: choice.lowering for name, choice in self.chosen.items()}


@dataclass(frozen=True)
class Built:
    """The contents of a file: functions, results of passes, lowerings, versions, precision.

    ``weights``: their bytes, and what the same graph's take in float32. ``written``: remarks on a user's module
    where its proof fails.
    """

    functions: list[str]
    passes: dict[str, PassResult]
    chosen: dict[str, Chosen]
    opset: int
    ir_version: int
    precision: PrecisionResult
    weights: tuple[int, int]
    written: Written


def build(
    source: Source,
    path: Path,
    recipe: Recipe,
    *,
    few: Reduction | None = None,
    layout: Layout = BUNDLE,
    store: Store | None = None,
    float32: Path | None = None,
    calibration: Calibration | None = None,
) -> Built:
    """Trace, run the passes, guard, attach functions, bring to its precision, fill the metadata, save, check.

    ``recipe``: the resolved options, which the metadata records. ``few``: the source with the layers that are traced
    (`few_layers`). ``store``: where weights go (`posexport.conversion.export.save`). ``float32``: a file for the graph
    as it is before it is brought to its precision. ``calibration``: what static scales of activations are measured on.

    Raises:
        NotTracedError: also for whatever onnx, onnx-ir and onnxscript raise.
    """
    lines: dict[str, str] = {}
    with without_onnx_errors(source.name, lines):
        lowered = _lowered(source, recipe, few, layout)
        model, passes, chosen, made_for = lowered
        before = weight_bytes(model)
        if float32 is not None:
            _save(model.clone(), source, float32, lowered.lowerings, recipe)
        written = written_by(model) if source.by_trial else Written()
        lines |= written.lines
        finished = with_precision(source, recipe)
        stored = apply(model, finished, made_for, recipe, calibration, source.stored_rows)
        if recipe.blocked and not recipe.half:
            routed = route_quantized(model, made_for)
            passes |= {RoutedExperts.name: routed} if routed != PassResult() else {}
        if recipe.adapter_format == ADAPTER_INPUTS:
            path.parent.mkdir(parents=True, exist_ok=True)
            as_files(model, source.inputs, path.parent)
        _save(model, finished, path, lowered.lowerings, recipe, store)
        names = sorted(function.name for function in model.functions.values() if function.domain == DOMAIN)
        built = Built(
            names,
            passes,
            chosen,
            opset=model.opset_imports[""],
            ir_version=model.ir_version,
            precision=stored,
            weights=(weight_bytes(model), before),
            written=written,
        )
        # the rewrite rules of onnxscript 0.7 are global and keep the last graph that they saw, but not its weights
        for value in model.graph.initializers.values():
            value.const_value = None
        return built


def _lowered(source: Source, recipe: Recipe, few: Reduction | None, layout: Layout) -> _Lowered:
    """The graph in float32: traced, changed by passes, with a lowering for each node of domain posexport.

    Functions are attached after everything that would inline them.
    """
    traced = as_traced(source)
    if few is None:
        materialize(traced.module.parameters())
    model = trace(traced, recipe.opset) if few is None else trace_by_layers(few, recipe.opset)
    model.ir_version = IR_VERSION
    target = Target(
        recipe.target,
        recipe.opset,
        inline=recipe.inline,
        steps=any(spec.role in CARRIED for spec in source.inputs),
        longest=_longest(source),
        dtype=recipe.dtype,
        clients_have=layout.microsoft,
        keep_float=tuple(recipe.keep_float),
    )
    # what was traced, until it has the inputs of the source
    known = context.of_source(traced, target, recipe.lowering)
    inserts_cache = isinstance(source.module, ForwardDecoder)
    cache = InsertedCache(recipe.cache == "static", recipe.rotation == "at-read") if inserts_cache else None
    passes = pipeline.run(model, replace(known, cache=cache), pipeline.OF_TRACE)
    if inserts_cache:
        defaults.add(model, source.inputs)
        known = context.of_source(source, target, recipe.lowering)
    # the graph that ships
    names = [value.name or "" for value in model.graph.outputs]
    known = replace(known, output_names=names, fed=layout.fed, static=recipe.static_sizes or {})
    without = {Unpadding.name: "--no-unpad was given"} if recipe.unpad is False else {}
    if recipe.static_sizes:
        without[Unpadding.name] = "--static was given"
    if recipe.weight_bits is not None:
        without[RoutedExperts.name] = "it is for experts in float32"
    requested = (Unpadding.name,) if recipe.unpad else ()
    passes |= pipeline.run(model, known, pipeline.OF_GRAPH, requested=requested, without=without)
    chosen = functions.attach(model, target, recipe.lowering)
    known = replace(known, specs={name: choice.spec for name, choice in chosen.items()})
    passes |= pipeline.run(model, known, pipeline.AFTER_LOWERING)
    return _Lowered(model, passes, chosen, target)


def _save(
    model: ir.Model,
    source: Source,
    path: Path,
    lowerings: dict[str, str],
    recipe: Recipe,
    store: Store | None = None,
) -> None:
    """Fill the metadata and write the file, without notes of other tools."""
    fill_metadata(model, source, lowerings, recipe)
    first = [value for value in model.graph.outputs if value.name == recipe.first_output]
    model.graph.outputs[:] = [*first, *(value for value in model.graph.outputs if value not in first)]
    strip_provenance(model)
    encoder_states.forget_sizes(model, source.inputs)
    save(model, path, source.module, store)


def _longest(source: Source) -> int | None:
    """The most tokens that any sequence of the inputs may have; None where one has no limit."""
    sequences = {axis for spec in source.inputs for axis in spec.axes} & {SEQUENCE, ENCODER_SEQUENCE}
    limited = bool(sequences) and sequences <= set(source.limits.limited_axes)
    return source.limits.max_length if limited else None
