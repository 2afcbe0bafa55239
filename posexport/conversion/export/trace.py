"""One call of ``torch.onnx.export``, with named axes that are tied where inputs share them."""

import contextlib
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import onnx_ir as ir
import torch
from onnxscript import opset18 as op18
from torch.export import ExportedProgram

from posexport.base.spec import SEQUENCE, LengthContract
from posexport.base.system.garbage import few_collections
from posexport.base.system.user_code import is_external, is_user_module
from posexport.conversion.export import computed_weights, defaults
from posexport.conversion.export.messages import FixedAxisError, NotTracedError, cannot_trace, meaning
from posexport.errors import PosexportError
from posexport.graph.edits import free_names
from posexport.models.forward_decoder import ForwardDecoder
from posexport.sources.example import axis_sizes, example
from posexport.sources.source import Source
from posexport.sources.torch_fixes import baddbmm, log_gamma, log_sums, missing_operators, shared_buffers, unit_scale
from posexport.sources.torch_fixes.as_exported import as_exported
from posexport.sources.torch_fixes.assertions import with_assertions_held
from posexport.sources.torch_fixes.contraction_orders import with_contraction_orders
from posexport.sources.torch_fixes.exact_constants import with_exact_constants
from posexport.sources.torch_fixes.exporter_output import without_exporter_output
from posexport.sources.torch_fixes.floor_division import with_floor_division
from posexport.sources.torch_fixes.helper_lines import with_helper_lines
from posexport.sources.torch_fixes.index_put import OPERATORS, index_put
from posexport.sources.torch_fixes.program_checks import with_programs_checked
from posexport.sources.torch_fixes.refined_ranges import with_ranges_refined
from posexport.sources.torch_fixes.rules_by_operator import with_rules_by_operator
from posexport.sources.torch_fixes.shape_solver import with_unsolved_sizes
from posexport.sources.torch_fixes.size_keys import with_size_keys
from posexport.sources.torch_fixes.size_uses import Choice, SizeUses, recording_size_uses
from posexport.sources.torch_fixes.slice_lengths import with_slice_lengths
from posexport.sources.torch_fixes.symbolic_int import with_symbolic_ints
from posexport.sources.torch_fixes.torchlib_once import with_torchlib_once

#: a size for an axis without a limit
_FAR = 2**20
#: up to which size an axis is traced that has one part at the size of the example
_MANY = 2048
#: of `ir.Model.meta`: `SizeUses`, what a user's module did with sizes while it was traced
SIZE_USES = "posexport.size_uses"


def trace(source: Source, opset: int, *, optimize: bool = True) -> ir.Model:
    """The graph of ``source`` at ``opset``: named inputs and outputs, axes that the tracer did not specialise.

    ``optimize``: let the exporter run onnxscript's optimiser.

    Raises:
        NotTracedError: the module cannot be traced, or fixes an axis that it declares dynamic.
        PosexportError: PyTorch cannot write ``opset``.
    """
    if source.limits.needs_whole_row:  # `int` and `max` of row lengths are sizes
        return _symbolic(source, opset, optimize=optimize)
    uses = SizeUses()

    def check() -> None:
        # `int()` of a quotient of two sizes is a number, and fixes no axis
        if uses.int_lines or not all(_holds(choice, source) for choice in uses.choices if choice.is_of_call):
            raise _NumbersOfSizesError(source.name)

    try:
        return _traced(source, opset, uses, check, optimize=optimize)
    except _NumbersOfSizesError:
        # once more where the graph has such a number, or `min` or `max` of a size is decided otherwise at other sizes
        with contextlib.suppress(NotTracedError):
            return _symbolic(source, opset, optimize=optimize)
        return _traced(source, opset, SizeUses(), optimize=optimize)
    except NotTracedError:
        if not (uses.int_lines or uses.constants or uses.choices):
            raise
        # the same with sizes that stay symbolic where the module makes a number of one; its first error counts
        with contextlib.suppress(NotTracedError):
            return _symbolic(source, opset, optimize=optimize)
        raise


class _NumbersOfSizesError(PosexportError):
    """A graph would have numbers in place of sizes."""


def _symbolic(source: Source, opset: int, *, optimize: bool) -> ir.Model:
    with with_symbolic_ints(source.module, _is_users, helpers=True):
        return _traced(source, opset, SizeUses(), optimize=optimize)


def _holds(choice: Choice, source: Source) -> bool:
    """Whether a comparison of a size is decided in the same way at the least and the largest size."""
    limits, axes = source.limits, next(spec.axes for spec in source.inputs if spec.name == choice.input)
    axis = str(axes[choice.axis])
    least = limits.min_length if axis == SEQUENCE else limits.min_sizes.get(axis, 1)
    most = limits.max_length if axis in limits.limited_axes else limits.max_sizes.get(axis)
    return choice.is_same(least) and choice.is_same(_FAR if most is None else most)


def as_traced(source: Source) -> Source:
    """``source`` as it is traced: without a KV cache where a graph pass inserts it."""
    decoder = source.module
    if not isinstance(decoder, ForwardDecoder):
        return source
    return msgspec.structs.replace(
        source,
        module=decoder.traced,
        inputs=decoder.traced_inputs,
        outputs=list(decoder.interface.returns),
        limits=msgspec.structs.replace(source.limits, kv_cache=False, trace_sizes={}),
    )


def _is_users(name: str) -> bool:
    return is_user_module(sys.modules[name])


def _traced(
    source: Source, opset: int, uses: SizeUses, check: Callable[[], None] = lambda: None, *, optimize: bool
) -> ir.Model:
    """``check`` is called when the module was captured, before it is translated."""

    def captured(program: ExportedProgram) -> None:
        _check_dynamic(_input_shapes(program), source, uses)
        check()
        shared_buffers.separate(program)
        if source.kind == "python":  # layers that are repeated, as of transformers, have their weights as parameters
            computed_weights.store(program)

    sizes = axis_sizes(source.inputs, source.limits.trace_sizes)
    kwargs, shapes = example(source.inputs, sizes), _dynamic_shapes(source, sizes)
    try:
        with (
            torch.no_grad(),
            few_collections(),
            without_exporter_output(),
            as_exported(),
            with_unsolved_sizes(),
            with_floor_division(),
            with_helper_lines(),
            with_rules_by_operator(),
            missing_operators.with_missing_operators(),
            with_exact_constants(),
            with_size_keys(),
            with_contraction_orders(),
            with_slice_lengths(),
            with_ranges_refined(),
            with_programs_checked(captured),
            with_torchlib_once(),
            with_assertions_held(),
            recording_size_uses(uses),
        ):
            program = torch.onnx.export(
                source.module,
                (),
                kwargs=_grouped(kwargs),
                dynamo=True,
                dynamic_shapes=_grouped(shapes),
                input_names=[spec.name for spec in source.inputs],
                output_names=[spec.name for spec in source.outputs],
                opset_version=opset,
                optimize=optimize,
                custom_translation_table=translations(opset),
                verbose=False,
            )
    except torch.onnx.errors.OnnxExporterError as err:
        raise cannot_trace(source.name, err, uses.slices) from err
    except BaseException as err:  # an error of the user's module, which the user has to fix
        if not source.by_trial or isinstance(err, PosexportError) or is_external(err):
            raise
        raise cannot_trace(source.name, err, uses.slices) from err
    if program is None:
        raise NotTracedError(f"{source.name} cannot be traced: torch.onnx.export returned nothing")
    got = program.model.opset_imports.get("")
    if got != opset:  # beyond the opsets it knows the exporter mixes two, without a word
        raise PosexportError(
            f"--opset {opset} is beyond what torch {torch.__version__} can write (it gave {got}); use a lower one"
        )
    _name_axes(program.model, source, uses)
    program.model.meta[SIZE_USES] = uses
    defaults.add(program.model, source.inputs)
    return program.model


def _dynamic_shapes(source: Source, sizes: Iterable[str]) -> dict[str, dict[int, Any]]:
    """By input and the number of an axis; axes of one name share a dimension."""
    dims = {name: _dimension(name, source.limits) for name in sizes}
    return {
        spec.name: {i: dims[axis] for i, axis in enumerate(spec.axes) if isinstance(axis, str)}
        for spec in source.inputs
    }


def _input_shapes(program: ExportedProgram) -> list[list[int | torch.SymInt]]:
    """The sizes of every input, of which a symbol may have become a number."""
    inputs = {node.name: node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"}
    shapes = [inputs[name].shape for name in program.graph_signature.user_inputs]
    return [
        [size.node.maybe_as_int() or size if isinstance(size, torch.SymInt) else size for size in s] for s in shapes
    ]


def _square_root(x: Any) -> Any:
    """The square root of a size."""
    return op18.Sqrt(op18.Cast(x, to=ir.DataType.FLOAT))


def _rounded(x: Any, _: Any = None) -> Any:
    """The integer that is nearest to a number computed of sizes, the even one of two."""
    return op18.Cast(op18.Round(op18.Cast(x, to=ir.DataType.FLOAT)), to=ir.DataType.INT64)


#: functions of sizes that PyTorch's exporter has no operators for
_OF_SIZES: dict[Callable[..., Any], Callable[..., Any]] = {torch.sym_sqrt: _square_root, round: _rounded}


def translations(opset: int) -> dict[Callable[..., Any], Callable[..., Any]]:
    """The exporter's custom translations at ``opset``, by PyTorch's operator."""
    norms = {unit_scale.OPERATOR: unit_scale.rms_norm} if opset >= unit_scale.OPSET else {}
    others: dict[Callable[..., Any], Callable[..., Any]] = {
        baddbmm.OPERATOR: baddbmm.baddbmm,
        log_gamma.OPERATOR: log_gamma.lgamma,
    }
    others |= log_sums.TRANSLATIONS | missing_operators.TRANSLATIONS
    return _OF_SIZES | dict.fromkeys(OPERATORS, index_put) | norms | others


def _dimension(name: str, limits: LengthContract) -> Any:
    """A dynamic axis; where it varies in steps, the tracer must know."""
    step = limits.size_steps.get(name, 1)
    least = limits.min_length if name == SEQUENCE else limits.min_sizes.get(name, 1)
    if step == 1:
        return torch.export.Dim(name, min=least if least > 1 else None, max=None)
    return step * torch.export.Dim(f"{name}_steps", max=None)


def _grouped(by_name: dict[str, Any]) -> dict[str, Any]:
    """Inputs ``name.rest`` as one list ``name``: the tracer knows arguments by names that Python allows."""
    found: dict[str, Any] = {}
    for name, value in by_name.items():
        argument, dot, _ = name.partition(".")
        if dot:
            found.setdefault(argument, []).append(value)
        else:
            found[name] = value
    return found


def _name_axes(model: ir.Model, source: Source, uses: SizeUses) -> None:
    """Check that inputs and outputs have the axes the source declares, and give the outputs' axes their names."""
    # inputs: every dynamic axis must still be one
    inputs = [[dim if isinstance(dim, int) else dim.value for dim in value.shape or ()] for value in model.graph.inputs]
    _check_dynamic(inputs, source, uses)
    for value, got, spec in zip(model.graph.inputs, inputs, source.inputs, strict=True):
        steps = source.limits.size_steps
        fits = len(got) == len(spec.axes) and all(
            isinstance(dim, str) if axis in steps else dim == axis for dim, axis in zip(got, spec.axes, strict=True)
        )
        if fits:
            value.shape = ir.Shape(spec.axes)
        else:
            raise NotTracedError(
                f"{source.name}: input {spec.name} was traced with axes {got}, declared {spec.axes}; "
                "an axis that the model fixes cannot be declared dynamic"
            )
    # outputs: their names must be free in the graph
    if len(model.graph.outputs) != len(source.outputs):
        raise NotTracedError(
            f"{source.name} gives {len(model.graph.outputs)} outputs, declared {[o.name for o in source.outputs]}"
        )
    free_names(model.graph, {out.name for out in source.outputs})
    for value, out in zip(model.graph.outputs, source.outputs, strict=True):
        if len(value.shape or ()) != len(out.axes):
            raise NotTracedError(
                f"{source.name}: output {out.name} was traced with {len(value.shape or ())} axes, it has {out.axes} "
                "when it is run; the module must compute the same while it is exported"
            )
        for traced, axis in zip(value.shape or (), out.axes, strict=True):
            if isinstance(axis, str) and isinstance(traced, int):
                raise NotTracedError(_fixed(source, f"axis {axis} of output {out.name}", traced, uses))
        value.name, value.shape = out.name, ir.Shape(out.axes)


def _check_dynamic(shapes: Sequence[Sequence[Any]], source: Source, uses: SizeUses) -> None:
    """FixedAxisError where a dynamic axis has a number in the ``shapes`` of the inputs."""
    for shape, spec in zip(shapes, source.inputs, strict=True):
        for number, (size, axis) in enumerate(zip(shape, spec.axes, strict=True)):
            if isinstance(axis, str) and isinstance(size, int):
                sentence = _fixed(source, f"axis {axis} of input {spec.name}", size, uses)
                larger = uses.with_more(spec.name, number, _MANY)
                raise FixedAxisError(sentence, spec.name, number, uses.line_of_constant(size), larger)


def _fixed(source: Source, axis: str, size: int, uses: SizeUses) -> str:
    what, line = f"{axis} was fixed at {size} by the trace", uses.line_of_constant(size)
    return f"{source.name}: {what}: {meaning(what, line)}"
