"""Inputs that a call of the graph may leave out: a default in the file, brought to the sizes of the tokens.

An initialiser with an input's name is the input's default. Its sizes are fixed, so that it is one element, which ONNX
Runtime accepts for an input of any size. It is expanded first: ONNX Runtime reuses buffers by declared sizes, which the
default does not have.
"""

from collections.abc import Sequence

import onnx_ir as ir

from posexport.graph.edits import integers
from posexport.spec import PAST, SEQUENCE, TOTAL, InputSpec


def add(model: ir.Model, inputs: Sequence[InputSpec]) -> None:
    """Give every input of ``inputs`` that has a ``default`` this default, in place; ``inputs`` are the graph's."""
    pairs = list(zip(model.graph.inputs, inputs, strict=True))
    for value, spec in pairs:
        if spec.default is not None:
            _add(model.graph, value, spec, pairs)


def _add(graph: ir.Graph, value: ir.Value, spec: InputSpec, pairs: Sequence[tuple[ir.Value, InputSpec]]) -> None:
    assert spec.default is not None
    value.const_value = ir.tensor([[spec.default]], dtype=ir.DataType.INT64, name=spec.name)
    graph.register_initializer(value)
    if not value.uses():
        return
    ids = next(v for v, s in pairs if s.role == "tokens" and SEQUENCE in s.axes)
    nodes = _sizes(graph, spec, ids, pairs)
    # the tracer reads a size from any input that has it; this one's default does not have the tokens'
    for node in [user for user, _ in value.uses() if user.op_type == "Shape"]:
        if TOTAL in spec.axes:
            _read_from(node, nodes[-1].outputs[0])
        else:
            node.replace_input_with(0, ids)
    whole = ir.node("Expand", [value, nodes[-1].outputs[0]], name=f"{spec.name}_of_all_tokens")
    for user, index in tuple(value.uses()):
        if user is not whole:
            user.replace_input_with(index, whole.outputs[0])
    whole.outputs[0].shape, whole.outputs[0].type = value.shape, value.type
    graph.insert_before(graph[0], (*nodes, whole))


def _sizes(
    graph: ir.Graph, spec: InputSpec, ids: ir.Value, pairs: Sequence[tuple[ir.Value, InputSpec]]
) -> list[ir.Node]:
    """Nodes whose last gives the sizes of ``spec``: those of ``ids``, or of past and new tokens."""
    past = next(((v, s.axes.index(PAST)) for v, s in pairs if PAST in s.axes), None) if TOTAL in spec.axes else None
    sizes = ir.node("Shape", [ids], name=f"{spec.name}_sizes")
    if past is None:
        return [sizes]
    held, axis = past
    count = ir.node("Shape", [held], {"start": axis, "end": axis + 1}, name=f"{spec.name}_past")
    none = integers(graph, [0])
    both = ir.node("Concat", [none, count.outputs[0]], {"axis": 0}, name=f"{spec.name}_more")
    total = ir.node("Add", [sizes.outputs[0], both.outputs[0]], name=f"{spec.name}_all_sizes")
    return [sizes, count, both, total]


def _read_from(node: ir.Node, sizes: ir.Value) -> None:
    """Let readers of a Shape read the sizes that the whole input has."""
    start = node.attributes.get_int("start", 0)
    end = node.attributes.get_int("end", 2)
    assert start is not None
    assert end is not None
    assert node.graph is not None
    part = ir.node("Slice", [sizes, integers(node.graph, [start]), integers(node.graph, [end])])
    part.outputs[0].shape, part.outputs[0].type = node.outputs[0].shape, node.outputs[0].type
    node.graph.insert_before(node, part)
    ir.convenience.replace_all_uses_with(node.outputs[0], part.outputs[0])
    node.graph.remove(node, safe=True)
