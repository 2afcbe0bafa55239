"""Recurrences and causal convolutions against their papers' formulas: PyTorch, and every lowering in ONNX Runtime."""

from itertools import product

import numpy as np
import onnx
import onnx.helper
import onnx_ir as ir
import onnxruntime
import pytest
import torch

from posexport.base.targets.target import MICROSOFT, Target
from posexport.graph.lowering.lowering import Lowering, function
from posexport.graph.lowering.states import CONVOLUTIONS, RECURRENCES
from posexport.graph.ops.operator import DOMAIN
from posexport.graph.ops.spec import NodeSpec
from posexport.graph.ops.states import ConvolutionSpec, RecurrenceSpec, convolution, recurrence
from tests.tolerances import agree

B, T, H, K, V, C, W = 2, 19, 5, 3, 4, 7, 4
SCALE = 0.7
RECURRENT = {spec.name: spec for spec in (RecurrenceSpec(*each) for each in product(("gated", "gated_delta"), (0, 1)))}
CONVOLVED = {spec.name: spec for spec in (ConvolutionSpec(*each) for each in product((False, True), repeat=2))}
TARGETS = {"portable": Target(), "cpu": Target("cpu", 18)}


def mamba2(q, k, v, past, decay):
    """Mamba-2 (arXiv:2405.21060), the matrix form: ``y_t = sum_s q_t exp(g_(s+1) + .. + g_t) k_s v_s``."""
    out, state = np.zeros_like(v), np.zeros_like(past)
    for b, t, h in product(*map(range, v.shape[:3])):
        # the decay from before each token, the past first, to t
        factor = np.exp(np.cumsum(decay[b, t::-1, h])[::-1])
        shifted = np.append(factor[1:], 1)
        keys, values, before = k[b, : t + 1, h], v[b, : t + 1, h], factor[0] * past[b, h]
        out[b, t, h] = (shifted * (keys @ q[b, t, h])) @ values + q[b, t, h] @ before
        state[b, h] = (shifted * keys.T) @ values + before
    return out, state


def mamba(q, k, v, past, decay):
    """Mamba (arXiv:2312.00752), equation 2a for every value alone: ``h = A h + B x``, ``y = C h``."""
    out, state = np.zeros_like(v), past.copy()
    for t in range(v.shape[1]):
        for value in range(v.shape[-1]):
            state[..., value] = np.exp(decay[:, t]) * state[..., value] + k[:, t] * v[:, t, :, value, None]
            out[:, t, :, value] = (q[:, t] * state[..., value]).sum(-1)
    return out, state


def delta(q, k, v, past, decay, beta):
    """Gated DeltaNet (arXiv:2412.06464), equation 10; by key Kimi Linear's (arXiv:2510.26692), equation 1."""
    alpha = np.exp(decay if decay.ndim == 4 else np.repeat(decay[..., None], k.shape[-1], -1))
    out, state = np.zeros_like(v), past.copy()
    for b, t, h in product(*map(range, v.shape[:3])):
        key = k[b, t, h][:, None]
        erase = np.eye(k.shape[-1]) - beta[b, t, h] * key @ key.T
        state[b, h] = erase @ np.diag(alpha[b, t, h]) @ state[b, h] + beta[b, t, h] * key @ v[b, t, h][None]
        out[b, t, h] = q[b, t, h] @ state[b, h]
    return out, state


ORACLES = dict(zip(RECURRENT, (mamba2, mamba, delta, delta), strict=True))


def drawn(spec: RecurrenceSpec, length: int = T, batch: int = B) -> dict[str, np.ndarray]:
    """Inputs with split heads; a few tokens are padding, which is to change nothing."""
    rng = np.random.default_rng([length, batch, spec.by_key, len(spec.rule)])
    x = {
        "q": rng.standard_normal((batch, length, H, K)),
        "k": rng.standard_normal((batch, length, H, K)),
        "v": rng.standard_normal((batch, length, H, V)),
        "past": rng.standard_normal((batch, H, K, V)),
        "decay": -rng.exponential(0.3, (batch, length, H, K) if spec.by_key else (batch, length, H)),
    }
    if "beta" in spec.inputs:
        x["k"] /= np.linalg.norm(x["k"], axis=-1, keepdims=True)
        x["beta"] = rng.random((batch, length, H))
    return x


def convolved(x, weight, past, mask, bias, *, silu: bool):
    """Row by row on its tokens alone, tap by tap."""
    out, present = np.zeros_like(x), past.copy()
    for row in range(len(x)):
        seen = past[row]
        for t in np.flatnonzero(mask[row]):
            seen = np.concatenate((seen, x[row][:, t : t + 1]), 1)
            out[row][:, t] = sum(weight[:, 0, tap] * seen[:, -W + tap] for tap in range(W)) + bias
        present[row] = seen[:, 1 - W :]
    return (out / (1 + np.exp(-out)) if silu else out), present


def to_convolve(spec: ConvolutionSpec, length: int, padding: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng([length, spec.biased, spec.silu])
    mask = np.ones((3, length), np.int64)
    if padding == "left":
        mask[0, : length - 1] = mask[1, :2] = 0
    elif padding == "anywhere":
        mask = (rng.random((3, length)) < 0.5).astype(np.int64)
        mask[0] = 0  # a row of padding alone
    x = {
        "x": rng.standard_normal((3, C, length)),
        "weight": rng.standard_normal((C, 1, W)),
        "past": rng.standard_normal((3, C, W - 1)),
        "mask": mask,
    }
    return {**x, "bias": rng.standard_normal(C)} if spec.biased else x


def session(spec: NodeSpec, lowering: Lowering, target: Target, inputs: dict[str, np.ndarray], **attributes):
    """A graph of one node and its function."""
    body = ir.serde.serialize_function(function(lowering, spec, target).function)
    node = onnx.helper.make_node(
        spec.name, spec.inputs, spec.outputs, domain=DOMAIN, **{n: attributes[n] for n in body.attribute}
    )
    ranks = dict(zip(spec.outputs, (3, inputs["past"].ndim), strict=True))
    types = {name: onnx.helper.np_dtype_to_tensor_dtype(x.dtype) for name, x in inputs.items()}
    graph = onnx.helper.make_graph(
        [node],
        "one",
        [onnx.helper.make_tensor_value_info(n, types[n], [None] * inputs[n].ndim) for n in spec.inputs],
        [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [None] * rank) for n, rank in ranks.items()],
    )
    domains = {DOMAIN: 1, MICROSOFT: 1, **{each.domain: each.version for each in body.opset_import}}
    opsets = [onnx.helper.make_opsetid(*each) for each in domains.items()]
    model = onnx.helper.make_model(graph, opset_imports=opsets, functions=[body], ir_version=10)
    onnx.checker.check_model(model)
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def float32(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: x.astype(np.float32) if x.dtype == np.float64 else x for name, x in inputs.items()}


@pytest.mark.parametrize(("length", "dtype"), [(1, "float64"), (T, "float64"), (150, "float64"), (T, "float32")])
@pytest.mark.parametrize("name", RECURRENT)
def test_pytorch_computes_the_papers_recurrence(name, length, dtype):
    spec = RECURRENT[name]
    x = drawn(spec, length)
    x["decay"][0, : length // 2] -= 300  # a state that is forgotten at once must not overflow, nor sums be rounded
    want = ORACLES[name](**x)
    tensors = {key: torch.from_numpy(value.astype(dtype)) for key, value in x.items()}
    got = recurrence(**{"beta": None, **tensors}, scale=SCALE)
    agree(got[0], want[0] * SCALE, "model", dtype)
    agree(got[1], want[1], "model", dtype)


@pytest.mark.parametrize("parts", [(T,), (1, 1, 11, 6)])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("lowering", RECURRENCES, ids=lambda lowering: lowering.name)
@pytest.mark.parametrize("name", RECURRENT)
def test_onnx_computes_the_papers_recurrence_in_any_calls(name, lowering, target, parts):
    spec = RECURRENT[name]
    if lowering.name == "linear-attention" and target == "portable":
        assert "ONNX Runtime" in (lowering.refusal(spec, TARGETS[target]) or "")
        return
    assert lowering.refusal(spec, TARGETS[target]) is None
    x = drawn(spec)
    want, last = ORACLES[name](**x)
    packed = {key: value if key == "past" else value.reshape(*value.shape[:2], -1) for key, value in float32(x).items()}
    run = session(spec, lowering, TARGETS[target], packed, heads=H, scale=SCALE, split_heads=[0, 0, H, -1])
    outs, past, start = [], packed["past"], 0
    for new in parts:
        call = {key: value[:, start : start + new] for key, value in packed.items() if key != "past"}
        out, past = run.run(None, {**call, "past": past})
        outs.append(out)
        start += new
    agree(np.concatenate(outs, 1), want.reshape(B, T, -1) * SCALE, "model in float32", np.float32)
    agree(past, last, "model in float32", np.float32)


@pytest.mark.parametrize("padding", ["none", "left", "anywhere"])
@pytest.mark.parametrize("length", [1, 2, T])
@pytest.mark.parametrize("name", CONVOLVED)
def test_a_convolution_reads_each_row_without_its_padding(name, length, padding):
    spec = CONVOLVED[name]
    x = to_convolve(spec, length, padding)
    want, last = convolved(**{"bias": np.zeros(C), **x}, silu=spec.silu)
    is_token = np.broadcast_to(x["mask"][:, None] != 0, want.shape)
    tensors = {key: torch.from_numpy(value) for key, value in x.items()}
    results = [convolution(**{"bias": None, **tensors}, silu=spec.silu)]
    for lowering, target in product(CONVOLUTIONS, TARGETS.values()):
        if not lowering.refusal(spec, target):
            results.append(session(spec, lowering, target, float32(x), channels=C).run(None, float32(x)))
    assert len(results) > 2
    for out, present in results:
        assert np.array_equal(out.shape, want.shape)
        agree(np.where(is_token, out, 0), np.where(is_token, want, 0), "operator", np.float32)
        agree(present, last.astype(np.asarray(present).dtype), "same values", np.float32)
