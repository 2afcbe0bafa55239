"""int8 weights, symmetric: a scale for each output channel, or for each row of word embeddings.

A lookup is Gather of the row, Cast, times Gather of the scale. Position tables, which are looked up by positions and
not by ids, stay in float32, as do tables of few rows, for instance of token types.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from posexport.base.spec import Interface
from posexport.graph.builder import Builder
from posexport.graph.dataflow import content_values
from posexport.graph.edits import replace
from posexport.graph.precision.derived import Derived, DerivedTensors
from posexport.graph.precision.projections import Weight, tensor_of
from posexport.graph.queries import names_of, with_bodies

#: The largest magnitude. Processors with VNNI (and ARM) sum products in 32 bits; AVX2 and AVX-512 without VNNI sum
#: pairs in 16, which a limit of 63 would keep whole at a cost in accuracy for all; there ONNX Runtime has
#: ``session.x64quantprecision`` instead (`posexport.run.session`).
LIMIT = 127


def scales(matrix: NDArray[np.float32]) -> NDArray[np.float32]:
    """[N] of a matrix [K, N]: its channel's largest magnitude / `LIMIT`; 1 for a channel of zeros."""
    scale = np.abs(matrix).max(0) / np.float32(LIMIT)
    return np.where(scale == 0, np.float32(1), scale).astype(np.float32)


def rounded(matrix: NDArray[np.float32]) -> NDArray[np.int8]:
    """[K, N]: the multiple of its channel's scale that is nearest to each weight."""
    whole: NDArray[np.int8] = np.clip(np.rint(matrix / scales(matrix)), -LIMIT, LIMIT).astype(np.int8)
    return whole


def by_channel(weight: Weight, smoothing: NDArray[np.float32] | None = None) -> Mapping[str, Derived]:
    """int8 [K, N] and scales [N], for products; ``smoothing`` [K]: what x is divided by before."""
    k, n = weight.sizes
    factor = np.float32(1) if smoothing is None else smoothing[:, None]
    return {
        "int8": Derived(ir.DataType.INT8, (k, n), lambda read: rounded(read() * factor)),
        "scale": Derived(ir.DataType.FLOAT, (n,), lambda read: scales(read() * factor)),
    }


def by_row(weight: Weight) -> Mapping[str, Derived]:
    """For a table [N, K] that is read row by row: int8 [N, K] and scales [N, 1]."""
    k, n = weight.sizes
    return {
        "int8_rows": Derived(ir.DataType.INT8, (n, k), lambda read: rounded(read()).T),
        "row_scale": Derived(ir.DataType.FLOAT, (n, 1), lambda read: scales(read())[:, None]),
    }


#: of smaller tables nothing is gained
LEAST_ROWS = 256


@dataclass(frozen=True)
class Lookup:
    """A Gather of rows of a table; ``table.sizes`` are its channels and its rows."""

    node: ir.Node
    table: Weight


def lookups(model: ir.Model, interface: Interface) -> list[Lookup]:
    """The Gathers of word embeddings: of rows, by indices that depend on ids."""
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


def quantize_lookup(lookup: Lookup, tensors: DerivedTensors) -> None:
    """Replaces the Gather of a float table by one of an int8 table."""
    node = lookup.node
    graph, ids, output = node.graph, node.inputs[1], node.outputs[0]
    assert isinstance(graph, ir.Graph)
    rows, scales = tensors.put(lookup.table, graph, by_row(lookup.table))
    g = Builder.at(node, name=output.name or "embedding", opset=tensors.opset)
    float32 = ir.DataType.FLOAT
    whole = g.Gather(rows, ids, name="int8", shape=output.shape, axis=0)
    real = g.Cast(whole, name="real", shape=output.shape, to=int(float32))
    scale = g.Gather(scales, ids, name="scale", axis=0)
    replace(output, g.Mul(real, scale, name="scaled", shape=output.shape))
    graph.remove(node, safe=True)
