"""Layers of experts by an operator that computes the chosen ones only, beside all of them."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from posexport.base.targets.target import Target
from posexport.errors import PosexportError
from posexport.graph.passes import pipeline
from posexport.graph.passes.graph_pass import Context
from tests.text_graphs import graph
from tests.tolerances import agree

#: tokens, experts, channels of the model and of an expert
_TOKENS, _COUNT, _CHANNELS, _INNER = 7, 5, 6, 4
_LAYER = """HEAD g (
    float[n, 6] x, int64[n, 2] chosen, float[n, 2] weights, float u, float d, int64 by_expert, int64 rows, int64 last,
    int64 one, int64 experts, float zero, float b, int64 zeroth, int64 end, int64 two, float limit, float least,
    float alpha, float unit
) => (float[n, 6] y)
<float[n, 5] routed> {{
    h = MatMul (x, u)
    each = Reshape (h, by_expert)
    {gate}
    chosen3 = Unsqueeze (chosen, last)
    is_chosen = Equal (chosen3, experts)
    weights3 = Unsqueeze (weights, last)
    placed = Where (is_chosen, weights3, zero)
    routed = ReduceSum <keepdims = 0> (placed, one)
    routed3 = Unsqueeze (routed, last)
    scaled = Mul (inner, routed3)
    flat = Reshape (scaled, rows)
    y = MatMul (flat, d)
}}"""
_SPLIT = """gate, up = Split <axis = -1, num_outputs = 2> (each)
    active = {} (gate)
    inner = Mul (active, up)"""
_SILU = _SPLIT.format("com.microsoft.QuickGelu <alpha = 1.0>")
#: GPT-OSS's; its limits are reached by every second channel
_ALTERNATING = """biased = Add (each, b)
    gate = Slice (biased, zeroth, end, last, two)
    up = Slice (biased, one, end, last, two)
    low = Clip (gate, , limit)
    near = Clip (up, least, limit)
    scaled_low = Mul (low, alpha)
    share = Sigmoid (scaled_low)
    active = Mul (low, share)
    more = Add (near, unit)
    inner = Mul (more, active)"""


def _layer(gate: str) -> ir.Model:
    rng = np.random.default_rng(0)
    model = graph(
        _LAYER.format(gate=gate),
        23,
        u=rng.standard_normal((_CHANNELS, _COUNT * 2 * _INNER)).astype(np.float32),
        d=rng.standard_normal((_COUNT * _INNER, _CHANNELS)).astype(np.float32),
        by_expert=np.array([0, _COUNT, 2 * _INNER]),
        rows=np.array([0, -1]),
        last=np.array([-1]),
        one=np.array([1]),
        experts=np.arange(_COUNT),
        zero=np.float32(0),
        b=rng.standard_normal((_COUNT, 2 * _INNER)).astype(np.float32),
        zeroth=np.array([0]),
        end=np.array([2**62]),
        two=np.array([2]),
        limit=np.float32(1.5),
        least=np.float32(-1.5),
        alpha=np.float32(1.7),
        unit=np.float32(1),
    )
    model.opset_imports["com.microsoft"] = 1
    return model


def _run(model: ir.Model, chosen: np.ndarray, weights: np.ndarray) -> np.ndarray:
    x = np.random.default_rng(1).standard_normal((_TOKENS, _CHANNELS)).astype(np.float32)
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": x, "chosen": chosen, "weights": weights})
    return np.asarray(y)


@pytest.mark.parametrize("gate", [_SILU, _ALTERNATING], ids=["silu", "gpt-oss"])
def test_the_same_sum(gate: str) -> None:
    """Of weights with any sum, also a negative one; a token without weights gets zeros, not NaN."""
    rng = np.random.default_rng(2)
    chosen = np.argsort(rng.random((_TOKENS, _COUNT)), 1)[:, :2]
    weights = rng.random((_TOKENS, 2)).astype(np.float32) * 3
    weights[2] *= -1
    weights[3], weights[4, 1], weights[5, 0] = 0, 0, 1e-6
    before = _run(_layer(gate), chosen, weights)
    model = _layer(gate)
    done = pipeline.run(model, Context(Target("cpu", 23)), only=("routed-experts",))
    assert done["routed-experts"].nodes == 1
    assert [node.op_type for node in model.graph].count("MoE") == 1
    assert not [node for node in model.graph if node.op_type == "MatMul"]
    after = _run(model, chosen, weights)
    agree(after, before, "model", np.float32)
    assert (after[3] == 0).all()
    onnx.checker.check_model(ir.to_proto(model))


@pytest.mark.parametrize(
    "gate",
    [
        _SPLIT.format("Gelu"),
        _ALTERNATING.replace("Clip (up, least, limit)", "Clip (up, zero, limit)"),
        _ALTERNATING.replace("Clip (gate, , limit)", "Identity (gate)"),
        _ALTERNATING.replace("gate = Slice (biased, zeroth", "gate = Slice (biased, one"),
    ],
)
def test_another_gate_stays(gate: str) -> None:
    model = _layer(gate)
    done = pipeline.run(model, Context(Target("cpu", 23)), only=("routed-experts",))["routed-experts"]
    assert done.nodes == 0
    assert done.rejected == ("the operator does not have its gate",)


def test_other_targets() -> None:
    with pytest.raises(PosexportError, match="MoE is ONNX Runtime's own operator; use --target cpu or cuda"):
        pipeline.run(_layer(_SILU), Context(Target("portable", 23)), only=("routed-experts",))
    model = _layer(_SILU)
    assert "routed-experts" not in pipeline.run(model, Context(Target("cuda", 24)))
    assert not [node for node in model.graph if node.op_type == "MoE"]
