"""What attention reads and weights alone decide, as a weight: projections of an embedding of distances, as of DeBERTa.

ONNX Runtime folds constants when it opens a model, where it has kernels for the CPU: in float32. In half
precision every call would project the whole table in every layer, for DeBERTa two products of 512 rows or more. In
float64 here, rounded once; the file has these tables more.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

from posexport.base.targets.dtypes import MODEL_DTYPE
from posexport.base.targets.target import Target
from posexport.graph.edits import initializer
from posexport.graph.ops.attention import AttentionSpec
from posexport.graph.passes.graph_pass import Context, GraphPass, PassResult
from posexport.graph.queries import FOLDED_FROM, names_of

_PRODUCTS = {"MatMul", "Gemm"}
#: what else may be between weights and the table
_OTHERS = {"Add", "Constant", "LayerNormalization", "Mul", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"}


class KnownTables(GraphPass):
    """A weight instead of a product of weights that attention reads.

    Before: ``MatMul(distance_embedding, w) -> posexport::Attention``
    After:  ``initializer -> posexport::Attention``
    """

    name = "known-tables"
    description = "tables of distances that weights alone decide, projected when the model is converted"

    def refusal(self, target: Target) -> str | None:
        return None if target.dtype != MODEL_DTYPE else "ONNX Runtime computes them when it opens the model"

    def why_not_preferred(self, target: Target) -> str | None:
        return super().why_not_preferred(target) if target.waits_to_branch else "not measured but for a device"

    def apply(self, model: ir.Model, context: Context) -> PassResult:
        """Apply the pass; the result counts tables."""
        read = [value for node in model.graph if AttentionSpec.of(node) is not None for value in node.inputs]
        reasons: list[str | None] = []
        for value in dict.fromkeys(value for value in read if value is not None):
            nodes = _nodes_before(value)
            if nodes is not None and any(node.op_type in _PRODUCTS for node in nodes):
                _store(model.graph, value, nodes)
                reasons.append(None)
        return PassResult.of(reasons)


def _nodes_before(value: ir.Value) -> list[ir.Node] | None:
    """All nodes that ``value`` is computed by, last first; None where not weights alone decide it."""
    nodes: dict[ir.Node, None] = {}
    left = [value]
    while left:
        value = left.pop()
        node = value.producer()
        if node is None and (value.is_graph_input() or value.const_value is None):
            return None
        if node is not None and node not in nodes:
            if node.domain or node.op_type not in {*_PRODUCTS, *_OTHERS}:
                return None
            nodes[node] = None
            left += [operand for operand in node.inputs if operand is not None]
    return list(nodes)


def _store(graph: ir.Graph, value: ir.Value, nodes: list[ir.Node]) -> None:
    """Replace ``value`` by a weight."""
    weights = {str(weight.name): weight for weight in _weights(nodes)}
    ordered = [node for node in graph if node in set(nodes)]
    proto = onnx.helper.make_graph(
        [ir.serde.serialize_node(node) for node in ordered],
        "table",
        [ir.serde.serialize_value(weight) for weight in weights.values()],
        [onnx.ValueInfoProto(name=value.name)],
    )
    table_model = onnx.helper.make_model(proto, opset_imports=[onnx.helper.make_opsetid("", graph.opset_imports[""])])
    (array,) = ReferenceEvaluator(table_model).run(None, {name: _wide(weight) for name, weight in weights.items()})
    dtype = value.dtype.numpy() if value.dtype is not None else np.dtype(np.float32)
    table = initializer(graph, f"{value.name}_known", ir.tensor(np.ascontiguousarray(np.asarray(array), dtype)))
    table.metadata_props[FOLDED_FROM] = repr([name for weight in weights.values() for name in names_of(weight)])
    ir.convenience.replace_all_uses_with(value, table)


def _weights(nodes: list[ir.Node]) -> Iterator[ir.Value]:
    for node in nodes:
        for value in node.inputs:
            if value is not None and value.producer() is None:
                yield value


def _wide(weight: ir.Value) -> NDArray[Any]:
    """Its numbers, floating-point ones in float64."""
    assert weight.const_value is not None
    array = np.asarray(weight.const_value.numpy())
    return array.astype(np.float64) if np.issubdtype(array.dtype, np.floating) else array
