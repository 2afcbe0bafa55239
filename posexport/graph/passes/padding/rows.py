"""Rows of tokens in a graph: where values become a matrix with a row for every token, and where rows are gathered."""

from collections.abc import Iterable

import onnx_ir as ir

from posexport.graph.builder import Builder
from posexport.graph.passes.padding.mask import Axes
from posexport.graph.queries import constant, sizes


def enters(node: ir.Node, lead: Axes) -> bool:
    """Whether ``node`` reshapes [B, T, C] to [B T, C]; ``lead``: the names of the axes B and T."""
    if node.op_type != "Reshape" or node.domain or node.inputs[0] is None or not is_rows(node.outputs[0]):
        return False
    shape = constant(node.inputs[1])
    whole = shape is not None and shape.shape == (2,) and shape[0] == -1
    axes = sizes(node.inputs[0])
    return whole and axes is not None and axes[:2] == lead


def is_rows(value: ir.Value) -> bool:
    """Whether ``value`` is a matrix of any number of rows."""
    return (
        value.shape is not None and len(value.shape) == 2 and not value.shape.is_static() and value.shape.is_static(1)
    )


def gather(graph: ir.Graph, g: Builder, entering: Iterable[ir.Node], keep: ir.Value) -> None:
    """Gather the rows of the tokens ``keep`` for all readers of ``entering``."""
    for node in entering:
        rows = node.outputs[0]
        readers = list(rows.uses())
        real_rows = g.Gather(rows, keep, axis=0, name=f"{rows.name}_kept")
        real_rows.shape, real_rows.type = rows.shape, rows.type
        for reader, place in readers:
            reader.replace_input_with(place, real_rows)
        graph.insert_after(node, g.take())


def builder(model: ir.Model) -> Builder:
    """A builder of nodes for ``model``, with names that no value has, in bodies either."""
    graph = model.graph
    values = [value for node in ir.traversal.RecursiveGraphIterator(graph) for value in node.outputs]
    taken = {value.name or "" for value in (*graph.inputs, *graph.initializers.values(), *values)}
    return Builder(model.opset_imports[""], taken=taken)
