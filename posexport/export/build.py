"""All steps from a source to a finished graph, in the order that keeps each step's work."""

from dataclasses import dataclass
from pathlib import Path

from posexport.bounds import bounds_of
from posexport.export import functions, guard, metadata, provenance, unknown_sizes
from posexport.export.functions import Chosen
from posexport.export.inline import inline as inline_functions
from posexport.export.names import name_control_flow
from posexport.export.save import Store, save
from posexport.export.trace import trace
from posexport.ops.operator import DOMAIN
from posexport.passes import pipeline
from posexport.passes.graph_pass import PassResult
from posexport.precision.apply import PrecisionResult, apply
from posexport.precision.half.ports import with_precision
from posexport.recipe import Recipe
from posexport.sources.source import Source
from posexport.spec import ENCODER_SEQUENCE, SEQUENCE
from posexport.targets.precision_options import PrecisionOptions
from posexport.targets.target import Target, TargetName


@dataclass(frozen=True)
class Built:
    """What a file has: functions, what each pass did, what nodes were lowered to, versions, precision."""

    functions: list[str]
    passes: dict[str, PassResult]
    chosen: dict[str, Chosen]
    opset: int
    ir_version: int
    precision: PrecisionResult


def build(
    source: Source,
    path: Path,
    *,
    opset: int,
    ir_version: int,
    target: TargetName = "portable",
    lowering: str = "auto",
    inline: bool = False,
    precision: PrecisionOptions | None = None,
    clients_have: frozenset[str] = frozenset(),
    recipe: Recipe | None = None,
    store: Store | None = None,
) -> Built:
    """Trace, run the passes, guard, attach functions, bring to its precision, fill the metadata, save, check.

    ``recipe``: what to say there about the options. ``store``: where weights go (`posexport.export.save`).

    The guard comes after the exporter's optimiser, which would move it; the functions after everything that would
    inline them.
    """
    options = precision or PrecisionOptions()
    model = trace(source, opset)
    model.ir_version = ir_version
    unknown_sizes.settle(model, source.inputs)
    made_for = Target(
        target,
        opset,
        flat=inline,
        steps=any(spec.role == "cache" for spec in source.inputs),
        longest=_longest(source),
        dtype=options.precision.dtype,
        clients_have=clients_have,
    )
    passes = pipeline.run(model, made_for, lowering)
    guard.insert(model, source.inputs, bounds_of(source.envelope))
    chosen = functions.attach(model, made_for, lowering)
    if inline:
        inline_functions(model)
    name_control_flow(model)
    finished = with_precision(source, options)
    stored = apply(model, finished, made_for, options)
    metadata.fill(model, finished, {name: found.lowering for name, found in chosen.items()}, recipe)
    provenance.strip(model)
    unknown_sizes.forget(model, source.inputs)
    save(model, path, source.module, store)
    names = sorted(function.name for function in model.functions.values() if function.domain == DOMAIN)
    return Built(names, passes, chosen, opset=model.opset_imports[""], ir_version=model.ir_version, precision=stored)


def _longest(source: Source) -> int | None:
    """The most tokens that any sequence of the inputs may have; None where one has no limit."""
    sequences = {axis for spec in source.inputs for axis in spec.axes} & {SEQUENCE, ENCODER_SEQUENCE}
    limited = bool(sequences) and sequences <= set(source.envelope.limited_axes)
    return source.envelope.limit if limited else None
