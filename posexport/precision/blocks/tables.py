"""Word embeddings that are tied to the head: rows of its blocks, so that both are stored once."""

import numpy as np
import onnx_ir as ir

from posexport.graph.edits import replace
from posexport.precision.blocks.packing import Scheme, for_dequantize, for_product
from posexport.precision.derived import DerivedTensors
from posexport.precision.insert import Insert
from posexport.precision.rows.embeddings import Lookup

FLOAT = ir.DataType.FLOAT


def quantize_tied(lookup: Lookup, tensors: DerivedTensors, scheme: Scheme, *, fused: bool) -> None:
    """Look rows up in what the head multiplies by; ``fused``: as MatMulNBits reads it, else DequantizeLinear.

    A row [K] is (whole [blocks, size] - 128) * scale [blocks, 1] without what fills the last block up.
    """
    node = lookup.node
    graph, ids, output = node.graph, node.inputs[1], node.outputs[0]
    assert isinstance(graph, ir.Graph)
    assert ids is not None
    k = lookup.table.sizes[0]
    add = Insert(graph, (node,), output.name or "embedding", before=node)

    def integers(name: str, *values: int) -> ir.Value:
        return tensors.number(graph, name, np.array(values, np.int64))

    rank = len(ids.shape or ())
    if fused:
        whole, scale = tensors.put(lookup.table, graph, for_product(lookup.table, scheme))
        whole = add("Gather", [whole, ids], "uint8", ir.DataType.UINT8, {"axis": 0})
        scale = add("Gather", [scale, ids], "scale", FLOAT, {"axis": 0})
        scale = add("Unsqueeze", [scale, integers("last_axis", -1)], "scales", FLOAT)
        middle = tensors.number(graph, "middle_of_uint8", np.float32(1 << (scheme.bits - 1)))
        real = add("Cast", [whole], "real", FLOAT, {"to": int(FLOAT)})
        real = add("Mul", [add("Sub", [real, middle], "signed", FLOAT), scale], "blocks", FLOAT)
        flat = integers(f"rows_flat_{rank}", *[0] * rank, -1)
        real = add("Reshape", [real, flat], "flat", FLOAT)
        if k % scheme.size:
            bounds = [integers("first", 0), integers(f"end_{k}", k), integers("last_axis", -1)]
            real = add("Slice", [real, *bounds], "row", FLOAT)
    else:
        # columns of [K, N], as the product reads it best
        whole, scale = tensors.put(lookup.table, graph, for_dequantize(lookup.table, scheme))
        whole = add("Gather", [whole, ids], "int8", ir.DataType.INT8, {"axis": 1})
        scale = add("Gather", [scale, ids], "scale", FLOAT, {"axis": 1})
        real = add("DequantizeLinear", [whole, scale], "real", FLOAT, {"axis": 0, "block_size": scheme.size})
        real = add("Transpose", [real], "row", FLOAT, {"perm": [*range(1, rank + 1), 0]})
    real.shape = output.shape
    replace(output, real)
    graph.remove(node, safe=True)
