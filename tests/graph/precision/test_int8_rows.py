"""int8 with a scale for every row: values by a NumPy oracle, wherever projections are, and what stays in float32."""

import hashlib
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

import posexport
from posexport.base.system import machine
from posexport.base.targets.precisions import PrecisionOptions
from posexport.base.targets.target import Target
from posexport.errors import PosexportError
from posexport.graph.precision.apply import apply
from posexport.graph.precision.projections import projections
from posexport.graph.precision.rows.activation_scales import ChannelRange, _scale
from posexport.run.tokenizer.byte_pair import train
from tests.small import proven
from tests.text_graphs import answers, calibration, graph, matrices, rows
from tests.tolerances import agree

K, N = 37, 22
INT8 = PrecisionOptions(precision="int8")
STATIC = PrecisionOptions(precision="int8", calibrate="sha256 of texts")
rng = np.random.default_rng(3)


X = rows(K)
matrix = matrices(3)


#: x64 without VNNI sums products of uint8 and int8 in 16 bits. The option against it opens no model that reads an int8
#: weight twice (ONNX Runtime 1.31), and does not reach products in bodies
NEEDS_VNNI = pytest.mark.skipif(machine.saturates(), reason="this processor has no VNNI")


def rows_of(x):
    """float64 values of the uint8 rows of ``x``, by their definition."""
    scale = np.abs(x.astype(np.float64)).max(-1, keepdims=True) / 127
    scale[scale == 0] = 1
    return np.rint(x / scale) * scale


def channels_of(w):
    return rows_of(w.T).T


FORMS = {
    "bias": ("y = MatMul(x, w) \n z = Add(y, b)", True),
    "bias-first": ("y = MatMul(x, w) \n z = Add(b, y)", True),
    "plain": ("z = MatMul(x, w)", False),
    "gemm": ("z = Gemm(x, w, b)", True),
}


@pytest.mark.parametrize("target", [Target("cpu", 23), Target("portable", 18), Target("cpu", 18)], ids=str)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("lead", [(5,), (3, 7), (2, 3, 5)], ids=str)
def test_values(form, lead, target):
    if form == "gemm" and len(lead) > 1:
        return
    body, biased = FORMS[form]
    # its own draws: whether a value is halfway between two steps, in float32, must not depend on the tests before
    draw, sizes = matrices(3), np.random.default_rng(3).uniform(0.01, 50, (*lead, 1)).astype(np.float32)
    w, b, x = draw(K, N), draw(N), draw(*lead, K) * sizes
    x[(0,) * len(lead)] = 0
    axes = ", ".join([*"rst"[: len(lead)], str(K)])
    text = f"HEAD g (float[{axes}] x, float w, float b) => (float z) {{ {body} }}"
    model = graph(text, target.opset, w=w, b=b)
    assert apply(model, X, target, INT8).projections == {"int8": 1}
    assert not any(
        value.const_value.dtype == ir.DataType.FLOAT and value.const_value.size == w.size
        for value in model.graph.initializers.values()
    )
    wanted = rows_of(x) @ channels_of(w) + (b if biased else 0)
    for (z,) in answers(model, x=x):
        agree(z, wanted, "scaled integers", np.float32)
        np.testing.assert_array_equal(z[(0,) * len(lead)], b if biased else 0)  # a row of zeros: the bias, exactly


@pytest.mark.parametrize("target", [Target("cpu", 23), Target("portable", 18)], ids=str)
def test_a_row_alone_and_in_a_batch_has_the_same_bits(target):
    w, b, x = matrix(K, N), matrix(N), matrix(67, K) * rng.uniform(0.01, 50, (67, 1)).astype(np.float32)
    text = f"HEAD g (float[r, {K}] x, float w, float b) => (float z) {{ z = Gemm(x, w, b) }}"
    model = graph(text, target.opset, w=w, b=b)
    apply(model, X, target, INT8)
    for place in (0, 40, 66):
        for (whole,), (alone,) in zip(answers(model, x=x), answers(model, x=x[place : place + 1]), strict=True):
            np.testing.assert_array_equal(whole[place], alone[0])


EVERYWHERE = f"""<ir_version: 10, opset_import: ["": OPSET, "own": 1]>
g (float[r, {K}] x, bool c, float u, float v, float w, float b) => (float z, float last) {{
  a = own.Constants(x)
  d = own.Passed(a, u, b)
  d2 = own.Passed(x, v, b)
  e = If(c) <
    then_branch = then_graph () => (float[r, {N}] f) {{ f1 = MatMul(x, w)  f = Add(f1, b) }},
    else_branch = else_graph () => (float[r, {N}] h) {{ h = MatMul(x, w) }}
  >
  z1 = Add(d, d2)
  z = Add(z1, e)
  last = Scan <body = one (float[{K}] s) => (float[1, {N}] t) {{
      first = Constant <value_ints = [0]> ()
      s1 = Unsqueeze(s, first)
      t = MatMul(s1, w)
  }}, num_scan_inputs = 1> (x)
}}
<domain: "own", opset_import: ["": OPSET]> Constants (x) => (y) {{
  w = Constant <value = float[{K}, {K}] {{MATRIX}}> ()
  y = MatMul(x, w)
}}
<domain: "own", opset_import: ["": OPSET]> Passed (x, w, b) => (y) {{
  p = MatMul(x, w)
  y = Add(p, b)
}}
"""


@NEEDS_VNNI
@pytest.mark.parametrize("target", [Target("cpu", 23), Target("portable", 18)], ids=str)
def test_functions_and_subgraphs(target, monkeypatch):
    monkeypatch.setattr(
        "posexport.graph.precision.selection.shrinking", lambda chosen, _: chosen
    )  # these are too small to
    inner, u, v, w, b, x = matrix(K, K), matrix(K, N), matrix(K, N), matrix(K, N), matrix(N), matrix(5, K)
    text = EVERYWHERE.replace("MATRIX", ", ".join(map(repr, inner.ravel().tolist())))
    model = graph(text, target.opset, u=u, v=v, w=w, b=b)
    assert len(projections(model, X)) == 5
    apply(model, X, target, INT8)
    floats = [value for value in model.graph.initializers.values() if value.const_value.dtype == ir.DataType.FLOAT]
    assert all(value.const_value.size < K for value in floats), "a float weight stayed"
    a = rows_of(x) @ channels_of(inner)
    passed = rows_of(a) @ channels_of(u) + b + rows_of(x) @ channels_of(v) + b
    branch = rows_of(x) @ channels_of(w)
    for chosen in (True, False):
        wanted = passed + branch + (b if chosen else 0)
        for z, last in answers(model, x=x, c=np.array(chosen)):
            agree(z, wanted, "rounded activations", np.int8, 2)
            agree(last[:, 0], branch, "scaled integers", np.float32, 2)


def test_a_bias_before_gelu_stays_an_add(tmp_path: Path) -> None:
    """Of one axis ONNX Runtime makes BiasGelu of it and Gelu, which takes longer."""
    target, w, b, x = Target("cpu", 23), matrix(K, N), matrix(N), matrix(13, K)
    text = f"HEAD g (float[r, {K}] x, float w, float b) => (float z) {{ y = Gemm(x, w, b) z = Gelu(y) }}"
    model = graph(text, target.opset, w=w, b=b)
    apply(model, X, target, INT8)
    y = rows_of(x) @ channels_of(w) + b
    for (z,) in answers(model, x=x):
        agree(z, y * np.vectorize(math.erf)(y / math.sqrt(2)) / 2 + y / 2, "scaled integers", np.float32)
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), options)
    operators = [node.op_type for node in ir.load(tmp_path / "optimized.onnx").graph]
    assert operators.count("Gelu") == 1
    assert "BiasGelu" not in operators


def test_what_several_read_is_quantised_once():
    text = f"""HEAD g (float[r, {K}] x, float u, float w) => (float y, float z) {{
      y = MatMul(x, u)  z = MatMul(x, w) }}"""
    model = graph(text, u=matrix(K, N), w=matrix(K, N))
    apply(model, X, Target("cpu", 23), INT8)
    kinds = [node.op_type for node in model.graph]
    assert kinds.count("MatMulIntegerToFloat") == 2
    assert kinds.count("ReduceMax") == 1


def test_a_weight_that_is_read_in_float_too_stays():
    text = f"""HEAD g (float[r, {K}] x, float w) => (float y, float z) {{
      y = MatMul(x, w)  z = Neg(w) }}"""
    model = graph(text, w=matrix(K, N))
    apply(model, X, Target("cpu", 23), INT8)
    assert [node.op_type for node in model.graph] == ["MatMul", "Neg"]


def test_cuda_has_no_kernel():
    text = f"HEAD g (float[r, {K}] x, float w) => (float y) {{ y = MatMul(x, w) }}"
    with pytest.raises(PosexportError, match="no kernel on CUDA; use --precision fp16"):
        apply(graph(text, w=matrix(K, N)), X, Target("cuda", 23), INT8)


TINY = {"layers": 1, "hidden": 60, "heads": 5}


def converted(name, output: Path, **options):
    proven(name, output, settings=TINY, precision="int8", verify=False, **options)
    return ir.load(output / "model.onnx")


def floats_of(model):
    """Names of the float matrices of a graph."""
    return {
        name
        for name, value in model.graph.initializers.items()
        if value.dtype == ir.DataType.FLOAT and len(value.shape) > 1 and min(value.shape) > 2
    }


@pytest.mark.all
def test_encoder(tmp_path):
    model = converted("encoder-learned", tmp_path / "a", target="cpu", keep_float=["*attention.value*"])
    kept = floats_of(model)
    assert len(kept) == 2, kept  # the position table and the value projection
    assert any("encoding" in name for name in kept)
    session = posexport.load(tmp_path / "a")
    ids = np.arange(3, 20)[None]
    both = np.concatenate([ids, ids[:, ::-1]])
    mask = np.ones_like(both)
    alone = session.run({"input_ids": ids, "attention_mask": mask[:1]})
    batch = session.run({"input_ids": both, "attention_mask": mask})
    for name in alone:
        np.testing.assert_array_equal(alone[name][0], batch[name][0])
    proven("encoder-learned", tmp_path / "b", settings=TINY, target="cpu", verify=False)
    reference = posexport.load(tmp_path / "b").run({"input_ids": both, "attention_mask": mask})
    for name in batch:
        a, b = batch[name].astype(np.float64).ravel(), reference[name].astype(np.float64).ravel()
        assert 0.99 < a @ b / np.linalg.norm(a) / np.linalg.norm(b) < 1 - 1e-9


@pytest.mark.all
def test_position_projections_stay_and_tied_embeddings_are_stored_once(tmp_path):
    model = converted("decoder-tupe", tmp_path / "a")
    assert all("encoding" in name or "val_" in name for name in floats_of(model))
    stored = [value for value in model.graph.initializers.values() if value.dtype == ir.DataType.INT8]
    assert [tuple(value.shape) for value in stored].count((1000, 60)) == 1
    assert not any(tuple(value.shape) == (60, 1000) for value in stored)


@pytest.mark.parametrize(("flags", "expected"), [("fpu avx2", True), ("fpu avx2 avx_vnni", False)])
def test_saturation_is_known_by_the_processor(flags, expected, tmp_path, monkeypatch):
    (tmp_path / "cpuinfo").write_text(f"processor : 0\nflags : {flags}\n")
    monkeypatch.setattr(machine, "CPU_INFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(machine.platform, "machine", lambda: "x86_64")
    assert machine.saturates.__wrapped__() is expected


@NEEDS_VNNI
def test_a_weight_of_several_layers():
    """ALBERT's layers share theirs."""
    text = f"""HEAD g (float[r, {K}] x, float w) => (float y) {{ a = MatMul(x, w)  y = MatMul(a, w) }}"""
    w, x = matrix(K, K), matrix(5, K)
    model = graph(text, w=w)
    apply(model, X, Target("cpu", 23), INT8)
    stored = [value for value in model.graph.initializers.values() if value.const_value.dtype == ir.DataType.INT8]
    assert len(stored) == 1
    wanted = rows_of(rows_of(x) @ channels_of(w)) @ channels_of(w)
    for (y,) in answers(model, x=x):
        agree(y, wanted, "rounded activations", np.int8, 2)


def calibrated(model, target, batches):
    """``model`` in int8 with scales measured on ``batches`` of x."""
    return apply(model, X, target, STATIC, calibration(*batches))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("target", [Target("cpu", 23), Target("portable", 18)], ids=lambda target: target.name)
def test_static_scales(target, form):
    """By SmoothQuant's formula and an affine scale, written out again."""
    body, biased = FORMS[form]
    w, b = matrix(K, N), matrix(N)
    batches = [matrix(rows, K) * np.geomspace(0.1, 30, K, dtype=np.float32) + 2 for rows in (40, 23)]
    model = graph(f"HEAD g (float[r, {K}] x, float w, float b) => (float z) {{ {body} }}", target.opset, w=w, b=b)
    outputs = len(model.graph.outputs)
    classes = calibrated(model, target, batches).classes
    assert "static" in classes["activations of linear projections"]
    assert len(model.graph.outputs) == outputs
    assert not any(node.op_type.startswith("Reduce") for node in model.graph)
    every = np.concatenate(batches).astype(np.float64)
    factor = np.abs(every).max(0) ** 0.8 / np.abs(w).max(1).astype(np.float64) ** 0.2
    factor = np.exp2(np.rint(np.log2(factor / np.prod(factor) ** (1 / K))))
    smooth = every / factor
    step = (smooth.max() - smooth.min()) / 255
    zero = round(-smooth.min() / step)
    x = batches[0]
    whole = (np.clip(np.rint(x / factor / step) + zero, 0, 255) - zero) * step
    wanted = whole @ channels_of(w * factor[:, None]) + (b if biased else 0)
    for (z,) in answers(model, x=x):
        agree(z, wanted, "rounded activations", np.int8)
    exact = x @ w + (b if biased else 0)
    assert np.abs(z - exact).max() < 0.05 * np.abs(exact).max()


@pytest.mark.parametrize(("low", "high", "zero", "width"), [(2, 5, 0, 5), (-5, -2, 255, 5), (-1, 3, 64, 4)])
def test_zeros_of_static_scales_are_zeros(low: float, high: float, zero: int, width: float) -> None:
    """Where all values have one sign, too: padding and what ReLU leaves are 0."""
    channels = ChannelRange(np.array([low, low], np.float32), np.array([high, low], np.float32))
    found = _scale(channels, SimpleNamespace(exclusive=False, largest=None))
    assert found.zero == zero
    agree(found.scale, width / 255, "rounded", np.float32)


@NEEDS_VNNI
def test_weights_of_several_readers_are_not_smoothed():
    text = f"HEAD g (float[r, {K}] x, float w) => (float y) {{ a = MatMul(x, w)  y = MatMul(a, w) }}"
    model, x = graph(text, w=(w := matrix(K, K))), matrix(50, K)
    calibrated(model, Target("cpu", 23), [x])
    assert "Mul" not in [node.op_type for node in model.graph]
    wanted = x @ w @ w
    for (y,) in answers(model, x=x):
        assert np.abs(y - wanted).max() < 0.05 * np.abs(wanted).max()


def test_calibrate(tmp_path):
    texts = tmp_path / "texts.txt"
    texts.write_text("the quick brown fox\njumps over the lazy dog\n\nand the dog sleeps\n" * 3)
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_bytes(train(texts, 60).data)
    options = {"calibrate": texts, "target": "cpu"}
    with pytest.raises(PosexportError, match=r"no tokenizer.json .* leave --calibrate out"):
        converted("encoder-learned", tmp_path / "a", **options)
    converted("encoder-learned", tmp_path / "a", tokenizer=tokenizer, **options)
    session = posexport.load(tmp_path / "a")
    assert session.manifest.recipe.calibrate == hashlib.sha256(texts.read_bytes()).hexdigest()
    alone = session.run({"input_ids": [[5, 6, 7, 8]]})
    batch = session.run({"input_ids": [[9, 9, 9, 9], [5, 6, 7, 8]]})
    for name in alone:
        np.testing.assert_array_equal(alone[name][0], batch[name][1])


@pytest.mark.all
def test_static_scales_must_fit_texts(tmp_path, monkeypatch):
    """Those that they were measured on where no others are given: ids of the grid they need not fit."""
    texts, others = tmp_path / "texts.txt", tmp_path / "others.txt"
    texts.write_text("aa\n")
    others.write_text("the quick brown fox jumps over the lazy dog and sleeps\n" * 3)
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_bytes(train(others, 60).data)
    options = {
        "settings": TINY,
        "precision": "int8",
        "tokenizer": tokenizer,
        "calibrate": texts,
        "lengths": [5],
        "threads": 1,
    }
    fits = posexport.convert("encoder-learned", tmp_path / "a", **options)
    assert fits.manifest.cost.on_texts.texts == 1
    monkeypatch.setattr("posexport.proof.agreement.texts.LEAST_STATIC", 1 - 1e-6)
    with pytest.raises(PosexportError, match=r"mean cosine of last_hidden_state .* on .*others.txt, needed .*; give "):
        posexport.convert("encoder-learned", tmp_path / "b", evaluate=others, **options)
    assert not (tmp_path / "b").exists()


def test_calibrate_needs_int8(tmp_path):
    with pytest.raises(PosexportError, match="--calibrate measures scales of int8 activations, got --precision fp32"):
        posexport.convert("encoder-learned", tmp_path / "a", calibrate=tmp_path / "texts.txt")
