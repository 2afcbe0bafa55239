"""Element types of values, by operators whose schema does not decide them."""

import onnx_ir as ir
import pytest

from posexport.graph.types import output_types


@pytest.mark.parametrize("opset", [18, 21, 23, 25])
@pytest.mark.parametrize("scale", [ir.DataType.FLOAT, ir.DataType.FLOAT16])
def test_what_is_dequantized_has_the_type_of_its_scale(scale: ir.DataType, opset: int) -> None:
    node = ir.node("DequantizeLinear", [ir.Value(name="x"), ir.Value(name="scale")])
    types = {"x": ir.DataType.INT8, "scale": scale}
    assert output_types(node, lambda value: types[value.name or ""], {"": opset}) == [scale]
    stated = ir.node("DequantizeLinear", node.inputs, {"output_dtype": int(ir.DataType.BFLOAT16)})
    assert output_types(stated, lambda value: types[value.name or ""], {"": opset}) == [ir.DataType.BFLOAT16]
