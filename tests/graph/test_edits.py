"""Changes of a graph: names of new weights."""

import numpy as np
import onnx_ir as ir

from posexport.graph.edits import initializer


def test_a_weight_has_the_name_of_no_value() -> None:
    x = ir.Value(name="x", shape=ir.Shape([3]), type=ir.TensorType(ir.DataType.FLOAT))
    node = ir.Node("", "Concat", [x, x], [ir.AttrInt64("axis", 0)], outputs=[ir.Value(name="cat_2")])
    graph = ir.Graph([x], list(node.outputs), nodes=[node], opset_imports={"": 18})
    weights = [initializer(graph, "cat_2", ir.tensor(np.zeros(number, np.float32))) for number in (1, 2)]
    assert [weight.name for weight in weights] == ["cat_2_1", "cat_2_2"]
