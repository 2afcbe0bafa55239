"""The pass that brings a float32 graph to float16 or bfloat16.

The module and its trace stay float32; the KV cache's inputs, and with ``--io half`` real values, have 16 bits.
"""

import ml_dtypes
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from posexport.base.spec import Interface, is_cache_output
from posexport.base.targets.precisions import PrecisionOptions
from posexport.base.targets.target import Target
from posexport.graph.dataflow import dependents
from posexport.graph.precision.half.casts import WIDE, Casts, convert, numpy_type
from posexport.graph.precision.half.flow import Flow, Info, Kind, merge_calls, separate_calls
from posexport.graph.precision.half.kernels import Kernels
from posexport.graph.precision.half.types import Backward, Forward


def to_half(model: ir.Model, interface: Interface, target: Target, options: PrecisionOptions) -> dict[str, str]:
    """Converts ``model`` in place; returns the types of each class of tensors.

    Raises:
        PosexportError: the target computes nothing in that type, or a parameter is beyond it.
    """
    dtype = ir.DataType[options.dtype.onnx]
    kernels = Kernels(target, model.opset_imports[""])
    calls = separate_calls(model)
    largest = float(ml_dtypes.finfo(numpy_type(dtype)).max)  # type: ignore[no-untyped-call]
    # the types of inputs, and what is computed from ids
    flow = Flow(calls, kernels, largest)
    held = {spec.name for spec in interface.inputs if spec.dtype == options.dtype.name}
    ids = {
        spec.name
        for spec in interface.inputs
        if spec.role in ("tokens", "types", "flags", "blocks", "places", "shapes", "indices", "rows", "adapters")
    }
    for value in model.graph.inputs:
        if value.dtype is not None:
            flow.types[value] = value.dtype
        if value.dtype == WIDE:
            flow.info[value] = Info(Kind.ACTIVATION, half=value.name in held)
    ids_read = (value for value in model.graph.inputs if value.name in ids)
    flow.contents = dependents(model.graph, ids_read, function=calls.get)
    # forward: which values can be half; backward: which must be, by their readers
    Forward(flow).run(model.graph)
    for value in model.graph.outputs:
        half = options.io == "half" or is_cache_output(value.name or "")
        flow.needs[value].add("half" if half else "wide")
    Backward(flow).run(model.graph)
    for value in model.graph.inputs:
        (flow.half.add if value.name in held and value in flow.info else flow.half.discard)(value)
    for value in model.graph.initializers.values():
        flow.decide(value)
    # write the casts, the outputs and the weights
    casts = Casts(flow, dtype)
    outputs = [options.io == "half" or is_cache_output(value.name or "") for value in model.graph.outputs]
    casts.write(model.graph)
    _outputs(model.graph, casts, outputs)
    stored = _stored(model.graph, casts)
    convert(model.graph, casts)
    merge_calls(model, calls)
    _tidy(model)
    return stored


def _outputs(graph: ir.Graph, casts: Casts, half: list[bool]) -> None:
    """Outputs keep their names and get their type, by a cast where they are computed in another."""
    for index, value in enumerate(list(graph.outputs)):
        if value not in casts.flow.info or (value in casts.flow.half) == half[index]:
            continue
        name = value.name
        value.name = f"{name}_computed"
        result = casts.output(value, half[index], graph)
        result.name = name
        graph.outputs[index] = result


def _stored(graph: ir.Graph, casts: Casts) -> dict[str, str]:
    """What parameters and caches are stored in."""
    name = casts.dtype.name.lower()
    wide = [value for value in graph.initializers.values() if value in casts.flow.info and value not in casts.flow.half]
    stored = {"weights": name, "activations": name, "angles, logs, slopes and tables from positions": "float32"}
    if elements := sum(value.const_value.size for value in wide if value.const_value is not None):
        stored["parameters that positions meet, and constants"] = f"float32 ({elements} values)"
    if any(is_cache_output(value.name or "") for value in graph.outputs):
        stored["KV cache"] = name
    return stored


def _tidy(model: ir.Model) -> None:
    """Removes unused nodes from ``model``."""
    RemoveUnusedNodesPass()(model)
