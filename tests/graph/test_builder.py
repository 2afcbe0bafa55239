"""The builder of function bodies: scopes, constants, attributes, names, and nodes that are written once."""

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from posexport.graph.builder import Builder
from posexport.run.providers import make_session

DOMAIN = "test"


def run(function: ir.Function, fed: dict[str, np.ndarray[Any, Any]], **attributes: Any) -> list[np.ndarray[Any, Any]]:
    """What a model of one call of ``function`` returns, after the strict checker."""
    outputs = [value.name for value in function.outputs]
    node = onnx.helper.make_node(function.name, list(fed), outputs, domain=DOMAIN, **attributes)
    inputs = [
        onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in fed.items()
    ]
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [None, None]) for name in outputs]
    opsets = [onnx.helper.make_opsetid("", 18), onnx.helper.make_opsetid(DOMAIN, 1)]
    proto = ir.serde.serialize_function(function)
    graph = onnx.helper.make_graph([node], "g", inputs, ends)
    model = onnx.helper.make_model(graph, opset_imports=opsets, functions=[proto], ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    return list(make_session(model.SerializeToString(), threads=1).run(None, fed))


def nodes(function: ir.Function) -> list[str]:
    """Operators of a function, those of its branches too."""
    return [node.op_type for node in ir.traversal.RecursiveGraphIterator(function.graph)]


def test_branches_read_values_around_them_and_attributes() -> None:
    g = Builder(18)
    x, y = g.input("x"), g.input("y")
    scaled = g.Mul(x, g.CastLike(g.attribute("scale", float), x))
    small = g.scalar(g.LessOrEqual(g.size(x, 1), [3]))
    out = g.if_(small, lambda: g.MatMul(scaled, y), lambda: x, branches=("small", "large"), name="out")
    function = g.function(DOMAIN, "Example", [x, y], {"out": out})
    assert list(function.attributes) == ["scale"]
    branches = next(node.attributes for node in function if node.op_type == "If")
    assert [branches[each].as_graph().name for each in ("then_branch", "else_branch")] == ["small", "large"]
    x_value = np.arange(6, dtype="f").reshape(2, 3)
    assert np.array_equal(run(function, {"x": x_value, "y": np.eye(3, dtype="f")}, scale=2.0)[0], 2 * x_value)
    wide = np.ones((2, 4), "f")
    assert np.array_equal(run(function, {"x": wide, "y": np.eye(4, dtype="f")}, scale=2.0)[0], wide)


def test_a_node_is_written_once_in_its_scope_and_those_inside() -> None:
    g = Builder(18)
    x = g.input("x")
    assert g.Add(x, g.size(x, 0)) is g.Add(x, g.size(x, 0))
    assert g.Softmax(x, axis=0) is not g.Softmax(x, axis=1)
    condition = g.scalar(g.Equal(g.size(x, 0), [2]))
    inner: list[ir.Value] = []

    def branch() -> ir.Value:
        inner.append(g.Neg(x))
        return g.Mul(inner[-1], g.size(x, 0))

    g.if_(condition, branch, branch, branches=("a", "b"), name="out")
    assert inner[0] is not inner[1], "what one branch computes the other cannot read"
    assert g.Neg(x) not in inner
    names = [value.name for value in (x, *inner, g.Neg(x))]
    assert len(set(names)) == len(names), "a name inside a branch hides none outside"


def test_a_scan_stacks_what_its_body_returns_for_each_slice() -> None:
    g = Builder(18)
    x, w = g.input("x"), g.input("w")
    out = g.scan(
        lambda row, factor: g.Mul(g.Add(row, w), factor),
        {"row": x, "factor": g.ReduceSum(x, [1])},
        body_name="each_row",
        name="rows",
    )
    function = g.function(DOMAIN, "Rows", [x, w], {"out": out})
    fed = {"x": np.arange(6, dtype="f").reshape(3, 2), "w": np.array([3, 5], "f")}
    want = (fed["x"] + fed["w"]) * fed["x"].sum(1, keepdims=True)
    assert np.array_equal(run(function, fed)[0], want)


def test_several_outputs_other_domains_and_constants() -> None:
    g = Builder(18)
    x = g.input("x")
    first, second = g.several("Split", ["first", "second"], x, axis=-1, num_outputs=2)
    normed = g.op("FusedMatMul", first, second, domain="com.microsoft", transB=1, name="product")
    function = g.function(DOMAIN, "Halves", [x], {"out": g.Mul(normed, g.Add(0.5, 0.5)), "same": x})
    assert function.opset_imports == {"": 18, "com.microsoft": 1}
    assert nodes(function).count("Constant") == 1
    assert [value.name for value in (first, second)] == ["first", "second"]
    with pytest.raises(AttributeError):
        _ = g.nothing


def example() -> tuple[ir.Graph, ir.Value, ir.Node]:
    """y = Relu(x) of [B, T, 24]; the Relu was traced in ``layer.0``."""
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(["B", "T", 24]))
    relu = ir.node("Relu", [x], name="relu", metadata_props={"scope": "layer.0"})
    relu.outputs[0].name, relu.outputs[0].type, relu.outputs[0].shape = "y", x.type, x.shape
    return ir.Graph([x], relu.outputs, nodes=[relu], opset_imports={"": 18}, name="main"), x, relu


def test_nodes_at_a_node_have_types_shapes_and_its_notes() -> None:
    graph, x, relu = example()
    g = Builder.at(relu)
    heads = g.Transpose(g.Reshape(x, [0, 0, 4, 6]), perm=[0, 2, 1, 3])
    kept = g.Greater(g.Max(heads, -1.0, name="least"), 0.5)
    total = g.Add(g.size(x, 1), 1)
    assert heads.shape == ir.Shape(["B", 4, "T", 6])
    assert heads.dtype == ir.DataType.FLOAT
    assert (kept.dtype, kept.shape) == (ir.DataType.BOOL, heads.shape)
    assert (total.dtype, total.shape) == (ir.DataType.INT64, ir.Shape([1]))
    assert [node.op_type for node in graph] == ["Reshape", "Transpose", "Max", "Greater", "Shape", "Add", "Relu"]
    assert all(node.metadata_props == {"scope": "layer.0"} for node in graph)
    assert sorted(graph.initializers) == ["float32_0.5", "float32_minus_1.0", "int64_1", "ints_0_0_4_6"]
    names = [value.name for node in graph for value in node.outputs]
    assert "least" in names
    assert len(set(names)) == len(names)


def test_nodes_behind_a_value_and_names_that_the_graph_has() -> None:
    graph, x, relu = example()
    g = Builder.behind(graph, relu.outputs[0], name="y")
    assert [g.Neg(relu.outputs[0]).name, g.Neg(g.Abs(x, name="abs")).name] == ["y_neg", "y_neg_2"]
    first = Builder.behind(graph, x).Identity(x, name="y")
    assert first.name == "y_2"
    assert [node.op_type for node in graph] == ["Identity", "Relu", "Neg", "Abs", "Neg"]


def test_a_branch_in_a_graph_reads_around_it() -> None:
    graph, x, relu = example()
    g = Builder.at(relu)
    short = g.scalar(g.LessOrEqual(g.size(x, 1), 3))
    out = g.if_(
        short, lambda: g.Neg(x), lambda: g.Abs(x), branches=("short", "long"), name="out", types=[ir.DataType.FLOAT]
    )
    relu.replace_input_with(0, out)
    session = make_session(ir.to_proto(ir.Model(graph, ir_version=10)).SerializeToString(), threads=1)
    fed = np.full((1, 3, 24), -2, "f")
    assert (session.run(None, {"x": fed})[0] == 2).all()
    assert (session.run(None, {"x": -fed})[0] == 0).all()


def test_shapes_that_cannot_be_are_left_unknown() -> None:
    _, x, relu = example()
    g = Builder.at(relu)
    other = ir.Value(name="other", type=x.type, shape=ir.Shape(["B", "T", 25]))
    assert (g.Add(x, other).shape, g.Add(x, other).dtype) == (None, ir.DataType.FLOAT)
    assert g.op("FastGelu", x, domain="com.microsoft", shape=x.shape).dtype == ir.DataType.FLOAT
