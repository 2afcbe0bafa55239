"""L2 normalisation as RMSNormalization, and PyTorch's softplus without its threshold, against float64."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnxruntime import InferenceSession

from posexport.base.targets.target import Target
from posexport.graph.passes.activations import Softplus
from posexport.graph.passes.graph_pass import Context
from posexport.graph.passes.l2_norm import L2Norm
from tests.tolerances import agree

HEADS, CHANNELS, EPSILON = 5, 7, 1e-6


def _model(axis: int, threshold: float) -> ir.Model:
    sizes = f"float[batch, {HEADS}, {CHANNELS}]"
    text = f"""<ir_version: 10, opset_import: ["" : 23]>
    graph ({sizes} x) => ({sizes} unit, {sizes} plus)
    <int64[1] axes = {{{axis}}}, float epsilon = {{{EPSILON}}}, float threshold = {{{threshold}}}> {{
        square = Mul(x, x)
        total = ReduceSum<keepdims = 1>(square, axes)
        shifted = Add(total, epsilon)
        root = Sqrt(shifted)
        factor = Reciprocal(root)
        unit = Mul(x, factor)
        above = Greater(x, threshold)
        soft = Softplus(x)
        plus = Where(above, x, soft)
    }}"""
    return ir.from_proto(onnx.parser.parse_model(text))


@pytest.mark.parametrize("axis", [-1, 2, 1])
def test_l2_norm_of_channels_is_one_node(axis: int) -> None:
    model = _model(axis, 20.0)
    result = L2Norm().apply(model, Context(Target("cpu", 23)))
    operators = [node.op_type for node in model.graph]
    assert result.nodes == operators.count("RMSNormalization") == (axis != 1)
    assert axis != 1 or "not over the last axis" in result.rejected[0]
    # large values, denormal squares, and a row of zeros
    x = np.random.default_rng(5).standard_normal((3, HEADS, CHANNELS)).astype(np.float32)
    x *= np.array([1e4, 1e-7, 0.0], np.float32)[:, None, None]
    unit = InferenceSession(ir.to_proto(model).SerializeToString()).run(["unit"], {"x": x})[0]
    wide = x.astype(np.float64)
    agree(unit, wide / np.sqrt((wide * wide).sum(axis, keepdims=True) + EPSILON), "operator", np.float32)


@pytest.mark.parametrize("threshold", [20.0, 5.0])
def test_softplus_needs_no_threshold_that_float32_does_not_see(threshold: float) -> None:
    model, target = _model(-1, threshold), Target("cpu", 23)
    before = ir.to_proto(model).SerializeToString()
    assert Softplus().apply(model, Context(target)).nodes == (threshold == 20.0)
    x = np.linspace(-130, 130, 3 * HEADS * CHANNELS, dtype=np.float32).reshape(3, HEADS, CHANNELS)
    after = ir.to_proto(model).SerializeToString()
    with_test, without = (InferenceSession(proto).run(["plus"], {"x": x})[0] for proto in (before, after))
    assert np.array_equal(with_test, without)


def test_portable_graphs_keep_the_threshold() -> None:
    assert not Softplus().concerns(Context(Target("portable", 23)))
