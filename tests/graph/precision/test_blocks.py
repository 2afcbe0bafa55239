"""Weights in blocks of 4 and 8 bits: values by a NumPy oracle, wherever projections are, tied embeddings, opsets."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

import posexport
from posexport.base.targets.precisions import PrecisionOptions
from posexport.base.targets.target import Target
from posexport.conversion.export import negotiate
from posexport.errors import PosexportError
from posexport.graph.precision.apply import apply
from posexport.graph.precision.blocks.rounding import half_quadratic, nearest
from posexport.run.providers import make_session
from tests.text_graphs import answers, graph, matrices, rows
from tests.tolerances import agree, agree_each

K, N = 70, 22  # three blocks of 32, the last filled up
CPU, PORTABLE = Target("cpu", 23), Target("portable", 21)
CLIENTS = Target("portable", 18, clients_have=frozenset({"MatMulNBits"}))
INT4 = PrecisionOptions(precision="int4")
rng = np.random.default_rng(5)


X = rows(K)
matrix = matrices(5)


def blocks_of(w, bits=4, size=32):
    """float64 values of ``w`` [K, N] in blocks, channel by channel and block by block."""
    rounded = np.zeros(w.shape)
    for n in range(w.shape[1]):
        for first in range(0, len(w), size):
            block = w[first : first + size, n].astype(np.float64)
            extreme = block[np.abs(block).argmax()]
            scale = float(np.float32(-extreme / 2 ** (bits - 1))) or 1.0
            whole = np.clip(np.rint(block / scale), -(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
            rounded[first : first + size, n] = whole * scale
    return rounded


def kinds(model):
    return [node.op_type for node in model.graph]


FORMS = {
    "bias": ("y = MatMul(x, w) \n z = Add(y, b)", True),
    "plain": ("z = MatMul(x, w)", False),
    "gemm": ("z = Gemm(x, w, b)", True),
}
CASES = {
    "int4": (INT4, 4, 32),
    "int4 by 128": (PrecisionOptions(precision="int4", block_size=128), 4, 128),
    "int8": (PrecisionOptions(precision="int8", weight_only=True), 8, 32),
}


@pytest.mark.parametrize("target", [CPU, PORTABLE, CLIENTS], ids=["cpu", "portable", "clients"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", CASES)
def test_values(case, form, target):
    options, bits, size = CASES[case]
    body, biased = FORMS[form]
    w, b, x = matrix(K, N), matrix(N), matrix(5, K)
    model = graph(f"HEAD g (float[r, {K}] x, float w, float b) => (float z) {{ {body} }}", target.opset, w=w, b=b)
    result = apply(model, X, target, options)
    assert result.classes["linear weights"] == f"int{bits} in blocks of {size}, rtn"
    assert result.projections == {f"int{bits}": 1}
    assert ("MatMulNBits" if target is not PORTABLE else "DequantizeLinear") in kinds(model)
    floats = [value for value in model.graph.initializers.values() if value.dtype == ir.DataType.FLOAT]
    assert all(value.const_value.size <= N * -(-K // size) for value in floats), "the float weight stayed"
    wanted = x @ blocks_of(w, bits, size) + (b if biased else 0)
    first, plain = (z for (z,) in answers(model, x=x))
    # MatMulNBits, which ONNX Runtime makes of the portable form too: activations in int8
    agree(first, wanted, "rounded activations", np.int8)
    how = ("model in float32", np.float32) if target is PORTABLE else ("rounded activations", np.int8)
    agree(plain, wanted, *how)


@pytest.mark.parametrize("target", [CPU, PORTABLE], ids=["cpu", "portable"])
@pytest.mark.parametrize("size", [32, 128])
def test_a_row_alone_and_in_a_batch(size, target):
    w, x = matrix(K, N), matrix(67, K) * rng.uniform(0.01, 50, (67, 1)).astype(np.float32)
    model = graph(f"HEAD g (float[r, {K}] x, float w) => (float z) {{ z = MatMul(x, w) }}", target.opset, w=w)
    apply(model, X, target, PrecisionOptions(precision="int4", block_size=size))
    for place in (0, 40, 66):
        for (whole,), (alone,) in zip(answers(model, x=x), answers(model, x=x[place : place + 1]), strict=True):
            agree(alone[0], whole[place], "model in float32", np.float32)


EVERYWHERE = f"""<ir_version: 10, opset_import: ["": OPSET, "own": 1]>
g (float[r, {K}] x, bool c, float u, float v, float w, float b) => (float z) {{
  d = own.Passed(x, u, b)
  d2 = own.Passed(x, v, b)
  e = If(c) <
    then_branch = then_graph () => (float[r, {N}] f) {{ f1 = MatMul(x, w)  f = Add(f1, b) }},
    else_branch = else_graph () => (float[r, {N}] h) {{ h = MatMul(x, w) }}
  >
  z1 = Add(d, d2)
  z = Add(z1, e)
}}
<domain: "own", opset_import: ["": OPSET]> Passed (x, w, b, unused) => (y) {{
  p = MatMul(x, w)
  y = Add(p, b)
}}
"""


@pytest.mark.parametrize("target", [CPU, PORTABLE], ids=["cpu", "portable"])
def test_functions_and_subgraphs(target):
    u, v, w, b, x = matrix(K, N), matrix(K, N), matrix(K, N), matrix(N), matrix(5, K)
    model = graph(EVERYWHERE, target.opset, u=u, v=v, w=w, b=b)
    apply(model, X, target, INT4)
    floats = [value for value in model.graph.initializers.values() if value.const_value.dtype == ir.DataType.FLOAT]
    assert all(value.const_value.size <= N * 3 for value in floats), "a float weight stayed"
    for chosen in (True, False):
        wanted = x @ (blocks_of(u) + blocks_of(v) + blocks_of(w)) + 2 * b + (b if chosen else 0)
        for (z,) in answers(model, x=x, c=np.array(chosen)):
            agree(z, wanted, "rounded activations", np.int8, 2)


@pytest.mark.parametrize("target", [CPU, PORTABLE], ids=["cpu", "portable"])
def test_hqq(target):
    w, x = matrix(K, N) + 0.7, matrix(5, K)  # far from symmetric
    model = graph(f"HEAD g (float[r, {K}] x, float w) => (float z) {{ z = MatMul(x, w) }}", target.opset, w=w)
    apply(model, X, target, PrecisionOptions(precision="int4", quantizer="hqq"))
    rounded = half_quadratic(w, 4, 32).real(4)[:, :K].T
    for (z,) in answers(model, x=x):
        agree(z, x @ rounded, "rounded activations", np.int8)
    error, symmetric = rounded - w, nearest(w, 4, 32).real(4)[:, :K].T - w
    assert np.abs(error).max() < 0.5
    assert (error**2).mean() < 0.7 * (symmetric**2).mean()


@pytest.mark.parametrize("bits", [4, 8])
def test_rounding_to_nearest_keeps_the_extreme_and_zeros(bits):
    w = matrix(64, 3)
    w[:32, 1] = 0
    rounded = nearest(w, bits, 32).real(bits).T
    agree_each(rounded, blocks_of(w, bits), "rounded", np.float32)
    for block in (slice(32), slice(32, None)):
        extremes = np.abs(w[block]).argmax(0)
        agree_each(rounded[block][extremes, range(3)], w[block][extremes, range(3)], "rounded", np.float32)


def test_opset():
    text = f"HEAD g (float[r, {K}] x, float w) => (float z) {{ z = MatMul(x, w) }}"
    with pytest.raises(PosexportError, match=r"--precision int4 .* need --opset 21 or higher; got 20"):
        apply(graph(text, 20, w=matrix(K, N)), X, Target("portable", 20), INT4)
    assert negotiate.opset(None, blocked=True) == 21
    assert negotiate.opset(None) == 18


TINY = {"layers": 1, "hidden": 60, "heads": 5}


def converted(name, output: Path, precision="int4", **options):
    assert posexport.convert(name, output, settings=TINY, precision=precision, verify=False, **options).good
    return posexport.load(output)


@pytest.mark.all
@pytest.mark.parametrize("target", ["cpu", "portable"])
def test_a_tied_head_is_stored_once_in_8_bits(target, tmp_path):
    session = converted("decoder-rope", tmp_path / "a", target=target)
    model = ir.load(tmp_path / "a" / "model.onnx")
    vocabulary = [value for value in model.graph.initializers.values() if 1000 in value.shape]
    assert sorted(value.dtype.name for value in vocabulary) == ["FLOAT", "UINT8" if target == "cpu" else "INT8"]
    exact = converted("decoder-rope", tmp_path / "b", precision="fp32", target=target)
    feeds = {"input_ids": np.arange(3, 20)[None]}
    a, b = (each.run(feeds)["logits"].astype(np.float64).ravel() for each in (session, exact))
    assert 0.95 < a @ b / np.linalg.norm(a) / np.linalg.norm(b) < 1 - 1e-6


def test_a_head_of_4_bits_leaves_its_embeddings_at_8(tmp_path: Path) -> None:
    options = {"settings": TINY, "precision": "int4", "target": "cpu", "lengths": [1, 17], "block_size": 64}
    done = posexport.convert("decoder-rope", tmp_path / "a", head_bits=4, **options)
    assert done.good, "quantized weights of the file are not those of the reference"
    model = ir.load(tmp_path / "a" / "model.onnx")
    (head,) = [node for node in model.graph if node.op_type == "MatMulNBits" and node.attributes["N"].as_int() == 1000]
    assert (head.attributes["bits"].as_int(), head.attributes["block_size"].as_int()) == (4, 64)
    rows = [value for value in model.graph.initializers.values() if value.dtype == ir.DataType.INT8]
    assert [tuple(value.shape) for value in rows] == [(1000, TINY["hidden"])]


def test_embeddings_of_an_encoder_are_rows_of_int8(tmp_path):
    converted("encoder-learned", tmp_path / "a", target="cpu", keep_float=["*attention.value*"])
    model = ir.load(tmp_path / "a" / "model.onnx")
    kept = [
        name
        for name, value in model.graph.initializers.items()
        if value.dtype == ir.DataType.FLOAT
        and len(value.shape) == 2
        and value.const_value.size > 60 * 10
        and not name.endswith("_scale")
    ]
    assert len(kept) == 2, kept  # the position table and the value projection


def test_blocks_of_int8_run_where_products_of_integers_saturate(monkeypatch: pytest.MonkeyPatch) -> None:
    """On x64 without VNNI an option that is right for products of integers broke every blocked int8 weight."""
    monkeypatch.setattr("posexport.run.providers.saturates", lambda: True)
    whole, scales = rng.integers(-100, 100, (60, 300)).astype(np.int8), rng.random((2, 300)).astype(np.float32)
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "scales"], ["real"], axis=0, block_size=32),
        helper.make_node("MatMul", ["x", "real"], ["y"]),
    ]
    weights = [numpy_helper.from_array(whole, "w"), numpy_helper.from_array(scales, "scales")]
    x, y = (helper.make_tensor_value_info(name, 1, ["n", size]) for name, size in (("x", 60), ("y", 300)))
    made = helper.make_model(
        helper.make_graph(nodes, "g", [x], [y], weights), opset_imports=[helper.make_opsetid("", 21)], ir_version=10
    )
    given = rng.standard_normal((3, 60)).astype(np.float32)
    (got,) = make_session(made.SerializeToString()).run(None, {"x": given})
    right = given @ (whole * np.repeat(scales, 32, 0)[:60])
    agree(got, right, "rounded activations", np.int8, 2)
