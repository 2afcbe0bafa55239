"""Word embeddings as int8 rows, each with its scale: Gather of the row, Cast, times Gather of the scale.

Position tables, which are looked up by positions and not by ids, stay in float32, as do tables of few rows such as
those of token types.
"""

from dataclasses import dataclass

import onnx_ir as ir

from posexport.graph.bodies import with_bodies
from posexport.graph.dataflow import content_values
from posexport.graph.edits import replace
from posexport.graph.queries import names_of
from posexport.precision.derived import DerivedTensors
from posexport.precision.insert import Insert
from posexport.precision.linear import Weight, tensor_of
from posexport.precision.rows.weights import by_row
from posexport.spec import Interface

#: of smaller tables nothing is gained
LEAST_ROWS = 256


@dataclass(frozen=True)
class Lookup:
    """A Gather of rows of a table; ``table.sizes`` are its channels and its rows."""

    node: ir.Node
    table: Weight


def lookups(model: ir.Model, interface: Interface) -> list[Lookup]:
    """Gathers of word embeddings by what follows from ids."""
    content = content_values(model, {spec.name: spec.role for spec in interface.inputs})
    return [
        lookup
        for graph in with_bodies(model.graph)
        for node in graph
        if (lookup := _lookup(node)) is not None and node.inputs[1] in content and lookup.table.sizes[1] >= LEAST_ROWS
    ]


def _lookup(node: ir.Node) -> Lookup | None:
    if node.op_type != "Gather" or node.domain or node.attributes.get_int("axis", 0) != 0:
        return None
    table = node.inputs[0]
    tensor = tensor_of(table)
    if table is None or tensor is None or len(tensor.shape) != 2 or tensor.dtype != ir.DataType.FLOAT:
        return None
    return Lookup(node, Weight(table, (tensor,), transposed=True, names=names_of(table)))


def quantize(lookup: Lookup, tensors: DerivedTensors) -> None:
    """Put the int8 table in the place of the float one."""
    node = lookup.node
    graph, ids, output = node.graph, node.inputs[1], node.outputs[0]
    assert isinstance(graph, ir.Graph)
    rows, scales = tensors.put(lookup.table, graph, by_row(lookup.table))
    add = Insert(graph, (node,), output.name or "embedding", before=node)
    float32 = ir.DataType.FLOAT
    whole = add("Gather", [rows, ids], "int8", ir.DataType.INT8, {"axis": 0}, shape=output.shape)
    real = add("Cast", [whole], "real", float32, {"to": int(float32)}, shape=output.shape)
    scale = add("Gather", [scales, ids], "scale", float32, {"axis": 0})
    replace(output, add("Mul", [real, scale], "scaled", float32, shape=output.shape))
    graph.remove(node, safe=True)
