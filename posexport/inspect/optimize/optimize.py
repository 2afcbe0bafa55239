"""Any tool's file through recognition, lowering and precision, without its source; the interface stays as it is."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir

from posexport.base.options.commands import AuditOptions, OptimizeOptions
from posexport.base.spec import CARRIED, InputSpec, OutputSpec
from posexport.base.system.files import check_free
from posexport.base.targets.precisions import FP32, PrecisionOptions
from posexport.base.targets.target import Target
from posexport.errors import PosexportError
from posexport.graph.builder import Builder
from posexport.graph.lowering import functions
from posexport.graph.passes import pipeline
from posexport.graph.passes.graph_pass import Context, PassResult
from posexport.graph.passes.last_logits import LastLogits
from posexport.graph.passes.padding.unpadding import Unpadding
from posexport.graph.precision.apply import apply
from posexport.inspect.audit.audited_graph import AuditedGraph
from posexport.inspect.audit.calls.calls import Calls
from posexport.inspect.audit.calls.opened import opened
from posexport.inspect.audit.calls.ports import UnknownError
from posexport.inspect.audit.calls.process import EndedError
from posexport.inspect.audit.repairs.compared import NotProvenError
from posexport.inspect.optimize.canonical import canonical
from posexport.inspect.optimize.facts import LONG, MOST, input_specs, longest, samples
from posexport.inspect.optimize.measured import measured
from posexport.inspect.optimize.proof import Compared, prove
from posexport.inspect.optimize.record import Optimized, PassDone, Times
from posexport.inspect.optimize.write import write
from posexport.run.bundle.directory import temporary

#: passes that change inputs, or what outputs hold at padding
_LEFT_OUT = {LastLogits.name: "it adds an input", Unpadding.name: "outputs at padding become zeros"}
#: how far outputs of a precision may be from the file's, relative to the largest value of an output; of integers this
#: shows broken files alone
_TOLERANCE = {"fp16": 2e-2, "bf16": 1e-1}
_BROKEN = 1.0


@dataclass(frozen=True)
class _Interface:
    """The graph's inputs and outputs, as precisions ask for them."""

    inputs: Sequence[InputSpec]
    outputs: Sequence[OutputSpec]


@dataclass(frozen=True)
class _Lowered:
    """A graph in float32, and what was done to it."""

    model: ir.Model
    target: Target
    inputs: Sequence[InputSpec]
    passes: dict[str, PassResult]
    left_out: dict[str, str]
    lowerings: dict[str, int]


def optimize(path: Path, output: Path, options: OptimizeOptions) -> Optimized:
    """What `posexport.optimize` does: writes ``output`` where calls show that it computes what ``path`` does.

    Raises PosexportError for a damaged file, one of which no call is computed, and an output that is there.
    """
    check_free(output, force=options.force)
    subject = AuditedGraph(path)
    before = len(subject.nodes), subject.opset()
    refused, proof, times = "", tuple[str, ...](), tuple[Times, ...]()
    try:
        # next to its place, so that moving it there is one step
        with (
            opened(subject, AuditOptions(timeout=options.timeout, memory=options.memory)) as original,
            temporary(output.absolute().parent, output.name) as folder,
        ):
            original.inputs = replace(original.inputs, longest=MOST)
            lowered = _lowered(path, original, options)
            try:
                proof = _prove(lowered, original, folder / output.name, options)
                times = tuple(measured(original, folder / output.name)) if options.bench else ()
                for file in sorted(folder.iterdir()):
                    file.replace(output.parent / file.name)
            except NotProvenError as err:
                refused = f"it could not be proven: {err}"
    except (UnknownError, EndedError) as err:
        raise PosexportError(f"{path} could not be called, so nothing can be proven: {err}") from err
    return Optimized(
        path=str(output),
        refused=refused,
        nodes=(before[0], sum(1 for _ in lowered.model.graph.all_nodes())),
        opset=(before[1], lowered.model.opset_imports[""]),
        passes={
            name: PassDone(done.nodes, done.rejected)
            for name, done in lowered.passes.items()
            if name not in lowered.left_out and (done.nodes or done.rejected)
        },
        left_out=lowered.left_out,
        lowerings=lowered.lowerings,
        proof=proof,
        times=times,
    )


def _lowered(path: Path, original: Calls, options: OptimizeOptions) -> _Lowered:
    """The graph of ``path`` after all passes, with a function for each node of domain posexport."""
    model = AuditedGraph(path).model
    canonical(model, path)
    inputs, most = input_specs(original.inputs.ports), longest(original)
    target = Target(
        options.target,
        model.opset_imports[""],
        steps=any(spec.role in CARRIED for spec in inputs),
        longest=most,
        dtype=PrecisionOptions(precision=options.precision).dtype,
    )
    context = Context(
        target,
        inputs=inputs,
        output_names=[value.name or "" for value in model.graph.outputs],
        traced_attention=PassResult(),
        feeds=lambda: samples(original, most or LONG),
    )
    reasons = {each.name: pipeline.why_left_out(each, target) for each in pipeline.PASSES if each.concerns(context)}
    left_out = _LEFT_OUT | {name: reason for name, reason in reasons.items() if reason}
    passes = pipeline.run(model, context, ("recognise", "optimise", "padding"), without=_LEFT_OUT)
    chosen = functions.attach(model, target)
    context = Context(target, inputs=inputs, specs={name: choice.spec for name, choice in chosen.items()})
    passes |= pipeline.run(model, context, pipeline.AFTER_LOWERING)
    lowerings: dict[str, int] = {}
    for choice in chosen.values():
        lowerings[choice.lowering] = lowerings.get(choice.lowering, 0) + choice.nodes
    return _Lowered(model, target, inputs, passes, left_out, lowerings)


def _prove(lowered: _Lowered, original: Calls, output: Path, options: OptimizeOptions) -> tuple[str, ...]:
    """Write the file and compare it with the original one; returns sentences on the calls.

    Raises:
        NotProvenError: an output differs. Of a lower precision the graph in float32 is compared first.
    """
    path, model = original.subject.path, lowered.model
    write(model, path, output)
    most = lowered.target.longest
    compared = prove(original, output, options, longest=most)
    sentences = list(_sentences(compared))
    if options.precision != FP32.name:
        precision = PrecisionOptions(precision=options.precision)
        outputs = [OutputSpec(name=value.name or "", axes=[]) for value in model.graph.outputs]
        types = [value.dtype for value in model.graph.outputs]
        apply(model, _Interface(lowered.inputs, outputs), lowered.target, precision)
        _keep_types(model.graph, types)
        write(model, path, output)
        tolerance = _TOLERANCE.get(options.precision, _BROKEN)
        reduced = prove(original, output, options, longest=most, tolerance=tolerance)
        off = f"{reduced.largest:.1e} of the largest value at most"
        sentences.append(f"in {options.precision} outputs differ from the file's by {off}")
    return tuple(sentences)


def _keep_types(graph: ir.Graph, types: Sequence[ir.DataType | None]) -> None:
    """Cast outputs that a precision gave another type, as it does with keys and values for a KV cache."""
    for index, (value, dtype) in enumerate(zip(list(graph.outputs), types, strict=True)):
        node = value.producer()
        if dtype is None or node is None or value.dtype == dtype:
            continue
        name, value.name = value.name, f"{value.name}_computed"
        graph.outputs[index] = Builder.at(node, after=True).Cast(value, to=dtype)
        graph.outputs[index].name = name


def _sentences(compared: Compared) -> Iterator[str]:
    behind = f", {compared.behind} of them behind a cache" if compared.behind else ""
    yield (
        f"the same outputs as the file in {compared.calls} calls{behind}: they differ by {compared.largest:.1e} of the "
        "largest value at most"
    )
    if compared.at_padding:
        yield "outputs of padded tokens are other numbers than the file's, which mean nothing there either"
    if compared.refused:
        yield f"the file itself fails in {compared.refused} further calls"
    if missing := sorted(compared.branches - compared.ran):
        yield f"{len(missing)} of {len(compared.branches)} branches ran in no call: {', '.join(missing)}"
    elif compared.branches:
        yield f"all {len(compared.branches)} branches ran"
