"""int8 by rows after a look at activations: outlier channels are smoothed, one-sided rows have a low zero point."""

import numpy as np
import onnx_ir as ir
import pytest

from posexport.base.spec import InputSpec, LengthContract
from posexport.base.targets.precisions import PrecisionOptions
from posexport.base.targets.target import Target
from posexport.graph.precision.apply import apply
from posexport.proof.agreement.texts import random_rows
from tests.small import proven
from tests.text_graphs import answers, calibration, graph, matrices, rows
from tests.tolerances import agree

TARGETS = [Target("cpu", 23), Target("portable", 18)]
K, N = 37, 22
X = rows(K)
matrix = matrices(11)
#: channels differ, and one has values a hundred times those of the others
OUTLIER = (np.where(np.arange(K) == 5, 100, 1) * np.geomspace(0.2, 3, K)).astype(np.float32)


def quantized(model, x, target):
    """In int8, after a look at ``x``."""
    result = apply(model, X, target, PrecisionOptions(precision="int8"), calibration(x))
    return result.classes["activations of linear projections"]


def rows_about(x, zero):
    """float64 values of uint8 rows about ``zero``: the highest at 255, unless the lowest would be below 0."""
    x = x.astype(np.float64)
    scale = np.maximum(x.max(-1) / (255 - zero), -x.min(-1) / min(zero, 255 - zero))[:, None]
    return (np.clip(np.rint(x / scale) + zero, 0, 255) - zero) * scale


def channels(w):
    scale = np.abs(w).max(0) / 127
    return np.rint(w / scale) * scale


def powers_of_two(x, w):
    """SmoothQuant's equation 4 with strength 0.6, at the nearest powers of two."""
    factor = np.abs(x).max(0).astype(np.float64) ** 0.6 / np.abs(w).max(1).astype(np.float64) ** 0.4
    return 2 ** np.round(np.log2(factor / np.prod(factor) ** (1 / len(factor))))


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_an_outlier_channel_is_smoothed(target):
    text = f"HEAD g (float[r, {K}] x, float w, float v) => (float y, float z) {{ y = MatMul(x, w) z = MatMul(x, v) }}"
    w, v, x = matrix(K, N), matrix(K, 2 * N), matrix(60, K) * OUTLIER
    model = graph(text, target.opset, w=w, v=v)
    assert "2 of 2 smoothed" in quantized(model, x, target)
    assert [node.op_type for node in model.graph].count("QuantizeLinear") == (2 if target.name == "cpu" else 1)
    factor = powers_of_two(x, np.concatenate([w, v], axis=1))
    assert len(set(factor)) > 2
    new = matrix(7, K) * OUTLIER
    whole = rows_about(new / factor, 128)
    for both in answers(model, x=new):
        for y, weight in zip(both, (w, v), strict=True):
            expected = whole @ channels(weight * factor[:, None])
            agree(y, expected, "ties", np.int8)
            plain = rows_about(new, 128) @ channels(weight)
            exact = new.astype(np.float64) @ weight
            assert np.square(y - exact).mean() < 0.4 * np.square(plain - exact).mean()


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_one_sided_rows_have_a_low_zero_point(target):
    text = f"HEAD g (float[r, {K}] x, float w) => (float y) {{ y = MatMul(x, w) }}"
    w, x = matrix(K, N), np.maximum(matrix(60, K), -0.17)
    model = graph(text, target.opset, w=w)
    assert "smoothed" not in quantized(model, x, target)
    # rows that were never looked at: what is far below 0 is not clipped, and zeros are zeros
    new = np.concatenate([x[:3], matrix(3, K), np.zeros((1, K), np.float32)])
    whole = rows_about(new[:-1], 24)
    for (y,) in answers(model, x=new):
        expected = whole @ channels(w)
        agree(y[:-1], expected, "scaled integers", np.float32)
        np.testing.assert_array_equal(y[-1], 0)


#: what the product reads -> whether the normalisation divides, which nothing else then reads
NORMS = {
    "n = LayerNormalization(x, s, b)  y = MatMul(n, w)": True,
    "n = RMSNormalization(x, s)  y = MatMul(n, w)": True,
    "n = Mul(x, s)  y = MatMul(n, w)": True,
    "n = LayerNormalization(x, s, b)  m = MatMul(n, w)  y = Add(m, n)": False,
    "n = LayerNormalization(x, s, b)  m = MatMul(n, w)  p = MatMul(n, n)  y = Add(m, p)": False,
    "n = Neg(x)  y = MatMul(n, w)": False,
}


@pytest.mark.parametrize("body", NORMS)
def test_a_normalisation_divides_where_nothing_else_reads_it(body):
    weights = {"s": OUTLIER * 2, "b": matrix(K) * OUTLIER, "w": matrix(K, K)}
    weights = {name: weight for name, weight in weights.items() if f", {name}" in body}
    inputs = "".join(f", float {name}" for name in weights)
    text = f"HEAD g (float[{K}, {K}] x{inputs}) => (float y) {{ {body} }}"
    x = matrix(K, K) * (OUTLIER if "s" not in weights else 1)
    exact = graph(text, **weights)
    before = [node.op_type for node in exact.graph].count("Mul")
    model = exact.clone()
    assert "1 of 1 smoothed" in quantized(model, x, Target("portable", 23))
    own = 3  # the row's step, the channel's scale, the row's scale
    assert [node.op_type for node in model.graph].count("Mul") == before + own + (not NORMS[body])
    for (y,), (y32,) in zip(answers(model, x=x), answers(exact, x=x), strict=True):
        assert np.linalg.norm(y - y32) < 0.02 * np.linalg.norm(y32)


@pytest.mark.all
def test_a_default_conversion_looks_at_random_tokens(tmp_path):
    sizes = {"layers": 2, "hidden": 60, "heads": 5, "feedforward": 120, "vocab": 300, "max_positions": 64}
    proven("encoder-learned", tmp_path / "a", settings=sizes, precision="int8", verify=False)
    model = ir.load(tmp_path / "a" / "model.onnx")
    zeros = {name for name in model.graph.initializers if name.startswith("zero_point")}
    assert zeros == {"zero_point", "zero_point_24"}  # 24: what GELU gives
    assert not list(tmp_path.glob("**/observed.onnx"))


def test_what_reads_more_than_tokens_is_plain():
    """Random numbers say nothing of real sounds or images."""

    class Graph:
        inputs = (InputSpec(name="x", dtype="float32", axes=["batch_size", "sequence_length", 3], role="values"),)
        outputs = ()

    assert random_rows(Graph, LengthContract()) == []
    ids = InputSpec(name="ids", dtype="int64", axes=["batch_size", "sequence_length"], role="tokens", size=9)
    Graph.inputs = (ids,)
    assert [each["ids"].shape for each in random_rows(Graph, LengthContract(max_length=20))] == [(4, 13), (4, 20)]
    Graph.inputs = (ids, InputSpec(name="memory", dtype="float32", axes=ids.axes, role="values"))
    assert random_rows(Graph, LengthContract()) == []
