"""Inputs that a call of the graph may leave out: a default in the file, brought to the sizes of the tokens.

An initialiser with an input's name is the input's default. Its sizes are fixed, so that it is one element, which ONNX
Runtime accepts for an input of any size. It is expanded first: ONNX Runtime reuses buffers by declared sizes, which the
default does not have.
"""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from posexport.base.spec import BATCH, EMBEDS, PAST, SEQUENCE, TOTAL, InputSpec
from posexport.graph.builder import Builder


def add(model: ir.Model, inputs: Sequence[InputSpec]) -> None:
    """Give every input of ``inputs`` that has a ``default`` this default, in place; ``inputs`` are the graph's."""
    pairs = list(zip(model.graph.inputs, inputs, strict=True))
    for value, spec in pairs:
        if spec.default is not None:
            _add(model.graph, value, spec, pairs)


def _add(graph: ir.Graph, value: ir.Value, spec: InputSpec, pairs: Sequence[tuple[ir.Value, InputSpec]]) -> None:
    assert spec.default is not None
    one = np.full([1] * len(spec.axes), spec.default, spec.dtype)
    value.const_value = ir.tensor(one, name=spec.name)
    graph.register_initializer(value)
    if not value.uses():
        return
    ids, axes = next((v, s.axes) for v, s in pairs if (s.role == "tokens" and SEQUENCE in s.axes) or s.name == EMBEDS)
    g = Builder.at_start(graph, name=spec.name)
    sizes = _sizes(g, spec, ids, pairs)
    # the tracer reads a size from any input that has it; this one's default does not have the tokens'
    for node in [user for user, _ in value.uses() if user.op_type == "Shape"]:
        if TOTAL in spec.axes or len(axes) > len(spec.axes):
            _read_from(node, sizes)
        else:
            node.replace_input_with(0, ids)
    users = tuple(value.uses())
    whole = g.op(
        "Expand",
        value,
        sizes,
        name="of_all_tokens" if SEQUENCE in spec.axes or TOTAL in spec.axes else "of_all_rows",
        shape=value.shape,
    )
    for user, index in users:
        user.replace_input_with(index, whole)


def _sizes(g: Builder, spec: InputSpec, ids: ir.Value, pairs: Sequence[tuple[ir.Value, InputSpec]]) -> ir.Value:
    """Returns the sizes of the axes of ``spec``: those of ``ids``, with past plus new tokens for a total axis."""
    if spec.axes == [BATCH]:
        return g.Slice(g.Shape(ids), [0], [1])
    past = next(((v, s.axes.index(PAST)) for v, s in pairs if PAST in s.axes), None) if TOTAL in spec.axes else None
    sizes = g.Shape(ids) if len(ids.shape or ()) == 2 else g.Slice(g.Shape(ids), [0], [2])  # of embeddings
    return sizes if past is None else g.Add(sizes, g.shape([0], g.size(*past)))


def _read_from(node: ir.Node, sizes: ir.Value) -> None:
    """Let readers of a Shape read the sizes that the whole input has."""
    start = node.attributes.get_int("start", 0)
    end = node.attributes.get_int("end", 2)
    assert start is not None
    assert end is not None
    assert node.graph is not None
    size = Builder.at(node).Slice(sizes, [start], [end])
    ir.convenience.replace_all_uses_with(node.outputs[0], size)
    node.graph.remove(node, safe=True)
