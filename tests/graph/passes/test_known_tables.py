"""What attention reads and weights alone decide becomes a weight; what a call decides stays."""

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from posexport.base.targets.dtypes import BY_PRECISION
from posexport.base.targets.target import Target
from posexport.graph.passes.known_tables import KnownTables

HALF = Target("cuda", 24, dtype=BY_PRECISION["fp16"])
GRAPH = """
<ir_version: 10, opset_import: ["": 24, "posexport": 1]>
g (float[B, T, 8] q, float[B, T, 8] k, float[3, 2] given) => (float[B, T, 8] y)
<float[3, 2] rows = {{ 1, 2, 3, 4, 5, 6 }}, float[2, 4] weight = {{ 1, 2, 3, 4, 5, 6, 7, 8 }},
 float[4] bias = {{ 1, 0, 1, 0 }}, int64[3] split = {{ 3, 2, 2 }}>
{{
    projected = {product}
    heads = Reshape(projected, split)
    table = Transpose<perm = [1, 0, 2]>(heads)
    y = posexport.Attention<spec_mask = "keys", spec_packed = 1, heads = 2, kv_heads = 2>(q, k, k, table)
}}
"""


def after(product: str) -> tuple[ir.Model, int]:
    model = ir.from_proto(onnx.parser.parse_model(GRAPH.format(product=product)))
    return model, KnownTables().apply(model, HALF).nodes


@pytest.mark.parametrize("product", ["Gemm(rows, weight, bias)", "MatMul(rows, weight)"])
def test_a_product_of_weights_is_a_weight(product):
    model, nodes = after(product)
    assert nodes == 1
    (attention,) = (node for node in model.graph if node.op_type == "Attention")
    table = attention.inputs[3].const_value.numpy()
    rows, weight = np.arange(1.0, 7).reshape(3, 2), np.arange(1.0, 9).reshape(2, 4)
    wanted = rows @ weight + ("bias" in product) * np.array([1, 0, 1, 0])
    assert table.dtype == np.float32
    assert np.array_equal(table, wanted.reshape(3, 2, 2).transpose(1, 0, 2))


@pytest.mark.parametrize("product", ["MatMul(given, weight)", "Tile(weight, split)"])
def test_what_a_call_decides_or_is_no_product_stays(product):
    assert after(product)[1] == 0


def test_in_float32_onnx_runtime_does_it():
    assert "opens the model" in (KnownTables().refusal(Target("cuda", 24)) or "")
    assert KnownTables().why_not_preferred(Target("cpu", 24, dtype=BY_PRECISION["fp16"])) is not None
