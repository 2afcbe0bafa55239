"""What int8 divides activations by is read from the graph: weights with other factors are refused."""

import numpy as np
import onnx_ir as ir
import pytest

from posexport.base.targets.precisions import PrecisionOptions
from posexport.base.targets.target import Target
from posexport.graph.precision.apply import apply
from posexport.proof.quantized.factors import set_factor, vectors
from posexport.proof.quantized.match import Matcher, check
from posexport.proof.quantized.read import read
from posexport.proof.quantized.records import StoredError
from tests.text_graphs import calibration, graph, matrices, rows

K, N = 70, 22
DRAWN = matrices(7)
#: every seventh channel is large, in what is multiplied
LARGE = np.where(np.arange(K) % 7, 1, 60).astype(np.float32)
W, BIAS = DRAWN(K, N), DRAWN(N)
SCALE, SHIFT = (1 + 0.1 * DRAWN(K)) * LARGE, 0.3 * DRAWN(K)
PARAMETERS = {"scale": SCALE, "shift": SHIFT, "bias": BIAS, "other": np.ones(K, np.float32)}
BODIES = {"smoothing_1": "n = Identity(x)", "scale_smooth": "n = LayerNormalization <axis = -1> (x, scale, shift)"}
TARGETS = [Target("cpu", 24), Target("portable", 21)]


def smoothed(constant: str, target: Target) -> ir.Model:
    text = f"HEAD g (float[r, {K}] x, float scale, float shift, float w, float b) => (float z) " \
           f"{{ {BODIES[constant]} z = Gemm(n, w, b) }}"  # fmt: skip
    model = graph(text, target.opset, scale=SCALE, shift=SHIFT, w=W, b=BIAS)
    x = DRAWN(90, K) * (LARGE if constant == "smoothing_1" else 1)
    apply(model, rows(K), target, PrecisionOptions(precision="int8"), calibration(x))
    assert constant in model.graph.initializers
    return model


def factor(model: ir.Model, parameters: dict[str, np.ndarray] = PARAMETERS) -> np.ndarray:
    (use,), _ = read(ir.to_proto(model).SerializeToString(), [])
    matched = Matcher({"w": W}).match(use.stored)
    set_factor(matched, use, vectors(parameters))
    check(matched)
    return matched.factor


def multiplied(model: ir.Model, name: str, by: np.ndarray | float) -> None:
    value = model.graph.initializers[name]
    value.const_value = ir.tensor((value.const_value.numpy() * by).astype(np.float32), name=name)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
@pytest.mark.parametrize("constant", BODIES)
def test_one_factor_that_is_doubled_is_refused(constant: str, target: Target) -> None:
    right = factor(smoothed(constant, target))
    assert len(set(right.tolist())) > 2
    for name in set(smoothed(constant, target).graph.initializers) & {"smoothing_1", "scale_smooth", "shift_smooth"}:
        wrong = smoothed(constant, target)
        multiplied(wrong, name, np.where(np.arange(K) == 12, 2, 1))
        with pytest.raises(StoredError, match=r"w_int8: (its activations are divided by s|.* first .* at 12)"):
            factor(wrong)


def test_factors_that_are_left_out_or_no_power_of_two_are_refused() -> None:
    for by in (0.75, 4):
        wrong = smoothed("smoothing_1", TARGETS[0])
        multiplied(wrong, "smoothing_1", by)
        with pytest.raises(StoredError, match="w_int8"):
            factor(wrong)
    left_out = smoothed("smoothing_1", TARGETS[0])
    left_out.graph.initializers["smoothing_1"].name = "other"
    with pytest.raises(StoredError, match=r"w_int8: .* are further from w than rounding errs"):
        factor(left_out)


def test_normalisations_multiply_by_parameters_and_one_more() -> None:
    model = smoothed("scale_smooth", TARGETS[0])
    right = factor(model)
    assert np.array_equal(factor(model, {"gain": SCALE - 1, "shift": SHIFT}), right)
    # of what is in no parameter the factors are estimated
    assert np.array_equal(factor(model, {}), right)


def test_a_parameter_is_known_by_its_name_where_another_is_its_multiple() -> None:
    model = smoothed("scale_smooth", TARGETS[0])
    assert np.array_equal(factor(model, {"first": 2 * SCALE, "scale": SCALE, "shift": SHIFT}), factor(model))
