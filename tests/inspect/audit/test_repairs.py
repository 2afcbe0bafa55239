"""Repairs: the same values where the file was right, values at other sizes, and nothing else changed."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

from posexport.errors import PosexportError
from posexport.inspect.audit.fix import fix
from posexport.inspect.audit.registry import REPAIRS, RULES
from tests.inspect.audit.graphs import saved
from tests.tolerances import agree

_RESHAPED = """
    <ir_version: 8, opset_import: ["": 18]>
    heads (float[B, T, 60] x) => (float[B, T, 60] y)
    <int64[4] split = {1, -1, 5, 12}, int64[3] joined = {2, 17, 60}, float[60] scale = {SCALE}>
    {
        scaled = Mul (x, scale)
        heads = Reshape (scaled, split)
        turned = Transpose <perm = [0, 2, 1, 3]> (heads)
        back = Transpose <perm = [0, 2, 1, 3]> (turned)
        y = Reshape (back, joined)
    }
""".replace("SCALE", ", ".join(str(x / 7) for x in range(60)))
_IN_FUNCTIONS = """
    <ir_version: 8, opset_import: ["": 18, "local": 1]>
    heads (float[B, T, 60] x) => (float[B, T, 60] y)
    <int64[4] split = {0, 17, 5, 12}, int64[4] free = {0, -1, 5, 12}, float[60] scale = {SCALE}>
    {
        scaled = Mul (x, scale)
        heads = local.heads (scaled, split)
        others = local.heads (scaled, free)
        both = Add (heads, others)
        y = local.joined (both)
    }
    <domain: "local", opset_import: ["": 18]>
    heads (x, sizes) => (y)
    {
        split = Reshape (x, sizes)
        turned = Transpose <perm = [0, 2, 1, 3]> (split)
        y = Transpose <perm = [0, 2, 1, 3]> (turned)
    }
    <domain: "local", opset_import: ["": 18]>
    joined (x) => (y)
    {
        sizes = Constant <value = int64[3] {0, 0, -1}> ()
        y = Reshape (x, sizes)
    }
""".replace("SCALE", ", ".join(str(x / 7) for x in range(60)))
_ROWS = """
    <ir_version: 8, opset_import: ["": 18]>
    rows (float[B, P, 3] x) => (float[B, N, 3] y)
    <float[1, 1, 3] cls = {1.0, 2.0, 3.0}, int64[3] times = {4, 1, 1}>
    {
        first = Tile (cls, times)
        y = Concat <axis = 1> (first, x)
    }
"""
_MASK = """
    <ir_version: 8, opset_import: ["": 18]>
    causal (float[B, H, T, T] x) => (float[B, H, T, T] y, float[B, H, T, T] z)
    <float[1, 1, 3, 3] mask = {0.0, -10000.0, -10000.0, 0.0, 0.0, -10000.0, 0.0, 0.0, 0.0}>
    {
        y = Add (x, mask)
        half = Mul (y, y)
        z = Add (half, mask)
    }
"""


def _run(path: Path, *inputs: NDArray[Any]) -> list[NDArray[Any]]:
    session = ort.InferenceSession(path)
    names = [value.name for value in session.get_inputs()]
    return [np.asarray(y) for y in session.run(None, dict(zip(names, inputs, strict=True)))]


def _values(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)


def test_sizes_of_the_example(tmp_path: Path) -> None:
    """A batch of 1 in one Reshape and 2 x 17 in the next: right at no size before, at all after."""
    before = saved(_RESHAPED, tmp_path)
    done = fix(before, ["PX101", "PX102"], tmp_path / "after.onnx")
    assert {code for code, _ in done.repaired} <= {"PX101", "PX102"}
    assert done.proof[-1].startswith("right in ")
    for shape in ((2, 17, 60), (1, 5, 60), (3, 1, 60)):
        x = _values(*shape)
        (y,) = _run(tmp_path / "after.onnx", x)
        np.testing.assert_array_equal(y, x * (np.arange(60) / 7).astype(np.float32))


def test_a_file_with_local_functions(tmp_path: Path) -> None:
    """One of two calls of a function has the fault: the other call, and weights on disk, stay as they are."""
    before = saved(_IN_FUNCTIONS, tmp_path)
    model = onnx.load(before)
    for tensor in model.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), tensor.name))
    onnx.save(model, before, save_as_external_data=True, location="weights.data", size_threshold=200)
    into = tmp_path / "repaired"
    into.mkdir()
    done = fix(before, ["PX101"], into / "after.onnx")
    assert len(done.repaired) == 1
    assert list(done.lines())[-1].endswith("all weights are the file's, its 2 local functions are inlined")
    after = onnx.load(into / "after.onnx", load_external_data=False)
    assert not after.functions
    assert next(t for t in after.graph.initializer if t.name == "scale").external_data[0].value == "weights.data"
    for length in (17, 5):
        x = _values(2, length, 60)
        (y,) = _run(into / "after.onnx", x)
        agree(y, 2 * x * (np.arange(60, dtype=np.float32) / 7), "rounded", np.float32)


def test_rows_that_were_repeated_for_the_example(tmp_path: Path) -> None:
    before = saved(_ROWS, tmp_path)
    done = fix(before, ["PX102"], tmp_path / "after.onnx")
    assert done.proof[0].startswith("the same outputs as the file in ")
    x = _values(4, 7, 3)
    np.testing.assert_array_equal(_run(tmp_path / "after.onnx", x)[0], _run(before, x)[0])
    (y,) = _run(tmp_path / "after.onnx", _values(2, 5, 3))
    assert y.shape == (2, 6, 3)
    np.testing.assert_array_equal(y[:, 0], [[1, 2, 3]] * 2)


def test_a_causal_mask_that_layers_share(tmp_path: Path) -> None:
    before = saved(_MASK, tmp_path)
    done = fix(before, ["PX103"], tmp_path / "after.onnx")
    x = _values(2, 5, 3, 3)
    for y, right in zip(_run(tmp_path / "after.onnx", x), _run(before, x), strict=True):
        np.testing.assert_array_equal(y, right)
    longer = _values(1, 5, 7, 7)
    (y, _) = _run(tmp_path / "after.onnx", longer)
    np.testing.assert_array_equal(y, longer + np.where(np.tril(np.ones((7, 7), bool)), 0, -1e4).astype(np.float32))
    # one mask for both layers; the constant is not read any more
    after = onnx.load(tmp_path / "after.onnx")
    assert sum(node.op_type == "Range" for node in after.graph.node) == 1
    assert "mask" not in {tensor.name for tensor in after.graph.initializer}
    assert done.left == ()


def test_a_guard_of_a_table(tmp_path: Path) -> None:
    before = saved(RULES["PX201"].bad, tmp_path)
    done = fix(before, ["PX201"], tmp_path / "after.onnx")
    assert [text.split(" calls")[0] for text in done.proof] == [
        "the same outputs as the file in 3",
        "refused beyond a table in 9",  # 5, 11 and 23 tokens
    ]
    ids = np.ones((2, 4), np.int64)
    np.testing.assert_array_equal(_run(tmp_path / "after.onnx", ids)[0], _run(before, ids)[0])
    with pytest.raises(Exception, match="position beyond the 4 rows of table"):
        _run(tmp_path / "after.onnx", np.ones((2, 5), np.int64))


@pytest.fixture
def uncompared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves the child processes of the comparison out, which other tests have."""
    monkeypatch.setattr("posexport.inspect.audit.fix.compared", lambda *_, **__: [])


@pytest.mark.usefixtures("uncompared")
@pytest.mark.parametrize("code", sorted(REPAIRS))
def test_what_was_repaired_is_not_found_again(code: str, tmp_path: Path) -> None:
    from posexport.inspect.audit.subject import Subject

    text = _MASK if code == "PX103" else RULES[code].bad
    fix(saved(text, tmp_path), [code], tmp_path / "after.onnx")
    onnx.checker.check_model(onnx.load(tmp_path / "after.onnx"), full_check=True)
    assert not list(RULES[code].check(Subject(tmp_path / "after.onnx")))


@pytest.mark.usefixtures("uncompared")
def test_nothing_else_changes(tmp_path: Path) -> None:
    before = saved(_RESHAPED, tmp_path)
    model = onnx.load(before)
    model.graph.node[0].doc_string = "the author's"
    model.metadata_props.add(key="author", value="someone")
    onnx.save(model, before)
    done = fix(before, ["PX101", "PX102"], tmp_path / "after.onnx")
    after = onnx.load(tmp_path / "after.onnx")
    kept = {node.SerializeToString() for node in model.graph.node} & {n.SerializeToString() for n in after.graph.node}
    assert len(kept) == len(model.graph.node) - 2  # the two Reshapes
    assert done.nodes == len(after.graph.node) - len(kept)
    weights = {tensor.name: tensor.SerializeToString() for tensor in after.graph.initializer}
    assert weights["scale"] == next(t.SerializeToString() for t in model.graph.initializer if t.name == "scale")
    assert (after.metadata_props, after.ir_version) == (model.metadata_props, model.ir_version)


def test_what_cannot_be_repaired(tmp_path: Path) -> None:
    table = saved(RULES["PX103"].bad, tmp_path)
    with pytest.raises(PosexportError, match=r"is no causal mask and no range: .*; export it again"):
        fix(table, ["PX103"], tmp_path / "after.onnx")
    with pytest.raises(PosexportError, match="there is no repair for this rule"):
        fix(table, ["PX104"], tmp_path / "after.onnx")
    with pytest.raises(PosexportError, match="nothing that PX201 can repair"):
        fix(table, ["PX201"], tmp_path / "after.onnx")
    old = saved(_ROWS.replace('"": 18', '"": 13'), tmp_path, "old.onnx")
    with pytest.raises(PosexportError, match="has opset 13, repairs are written in 15 and later"):
        fix(old, ["PX102"], tmp_path / "after.onnx")
    assert not (tmp_path / "after.onnx").exists()


def test_a_repair_that_changes_what_was_right_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph that is right at its example's sizes, and a repair that computes something else there."""
    from posexport.inspect.audit.repairs import example_constant

    monkeypatch.setattr(
        example_constant.Builder, "LessOrEqual", lambda g, a, b: g.op("GreaterOrEqual", a, b), raising=False
    )
    before = saved(_MASK, tmp_path)
    done = fix(before, ["PX103"], tmp_path / "after.onnx")
    assert re.search("another 'y' at batch .* where the file was right", done.refused)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx"]


@pytest.mark.usefixtures("uncompared")
def test_external_data_goes_with_the_file(tmp_path: Path) -> None:
    before = saved(_RESHAPED, tmp_path / "in")
    model = onnx.load(before)
    for tensor in model.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), tensor.name))
    onnx.save(model, before, save_as_external_data=True, location="weights.bin", size_threshold=100)
    (tmp_path / "out").mkdir()
    fix(before, ["PX101", "PX102"], tmp_path / "out" / "after.onnx")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["after.onnx", "weights.bin"]
    (y,) = _run(tmp_path / "out" / "after.onnx", x := _values(2, 5, 60))
    np.testing.assert_array_equal(y, x * (np.arange(60) / 7).astype(np.float32))


@pytest.mark.usefixtures("uncompared")
def test_angles_in_float32(tmp_path: Path) -> None:
    """Positions beyond 2,048 are rounded in float16; the frequencies are in the file in float32."""
    before = saved(RULES["PX301"].bad, tmp_path)
    fix(before, ["PX301"], tmp_path / "after.onnx")
    x = np.zeros((1, 5001, 4), np.float16)
    right = np.cos(np.arange(5001)[:, None] * np.array([1.0, 0.01]))
    assert np.abs(_run(before, x)[0] - right).max() > 1
    assert np.abs(_run(tmp_path / "after.onnx", x)[0] - right).max() < 1e-3
    model = onnx.load(before)
    half = numpy_helper.from_array(np.array([[1.0, 0.01]], np.float16), "frequencies")
    kept = [tensor for tensor in model.graph.initializer if tensor.name != "frequencies32"]
    nodes = [node for node in model.graph.node if "frequencies" not in node.output]
    for field, values in ((model.graph.initializer, [*kept, half]), (model.graph.node, nodes)):
        copies = [type(value).FromString(value.SerializeToString()) for value in values]
        del field[:]
        field.extend(copies)
    onnx.save(model, tmp_path / "stored.onnx")
    with pytest.raises(PosexportError, match="'frequencies' is stored in half precision"):
        fix(tmp_path / "stored.onnx", ["PX301"], tmp_path / "other.onnx")


@pytest.mark.usefixtures("uncompared")
def test_a_norm_in_float32(tmp_path: Path) -> None:
    before = saved(RULES["PX302"].bad, tmp_path)
    fix(before, ["PX302"], tmp_path / "after.onnx")
    epsilon = np.array([1e-3], np.float16)
    # on the CPU half precision is computed in float32 by both: what counts is that the values stay
    x = np.random.default_rng(2).standard_normal((2, 3, 60)).astype(np.float16)
    for scale in (1, 1000):
        wide = (x * np.float16(scale)).astype(np.float64)
        right = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-3)
        (y,) = _run(tmp_path / "after.onnx", (x * np.float16(scale)), epsilon)
        agree(y, right, "operator in half precision", np.float16)


def _attention(q: NDArray[Any], k: NDArray[Any], v: NDArray[Any], kept: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Softmax(q k) v in float64 over the keys that are kept, [B, 1, T, S]; k is [B, H, D, S]."""
    scores = np.where(kept, q.astype(np.float64) @ k, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True) @ v  # type: ignore[no-any-return]


def _padded(*, left: bool) -> tuple[list[NDArray[Any]], NDArray[np.bool_]]:
    """Q, K^T, V of 5 heads and a mask of rows with 7 and 4 tokens; the mask as booleans."""
    q, k, v = (2 * _values(2, 5, *shape) for shape in ((7, 3), (3, 7), (7, 3)))
    mask = np.ones((2, 7), np.int64)
    mask[1, slice(None, 3) if left else slice(4, None)] = 0
    return [q, k, v, mask], mask.astype(bool)


def test_a_mask_of_minus_infinity(tmp_path: Path) -> None:
    before = saved(RULES["PX303"].bad, tmp_path)
    done = fix(before, ["PX303"], tmp_path / "after.onnx")
    assert done.proof[0].startswith("the same outputs as the file in ")
    inputs, real = _padded(left=True)
    (nan,), (y,) = _run(before, *inputs), _run(tmp_path / "after.onnx", *inputs)
    assert np.isnan(nan[1, :, :3]).all()
    assert np.isfinite(y).all()
    kept = np.tril(np.ones((7, 7), bool)) & real[:, None, None]
    with np.errstate(invalid="ignore"):
        right = _attention(*inputs[:3], kept)
    tokens = np.broadcast_to(real[:, None, :, None], y.shape)
    agree(y[tokens], right[tokens], "operator", np.float32)
    np.testing.assert_array_equal(y[tokens], nan[tokens])


def test_a_mask_of_ones_and_zeros(tmp_path: Path) -> None:
    """Rows without padding are the file's, and padding is masked; the file is right in no padded call."""
    before = saved(RULES["PX304"].bad, tmp_path)
    done = fix(before, ["PX304"], tmp_path / "after.onnx")
    assert [text.split(" calls")[0] for text in done.proof] == ["the same outputs as the file in 12", "right in 6"]
    inputs, real = _padded(left=False)
    (y,) = _run(tmp_path / "after.onnx", *inputs)
    right = _attention(*inputs[:3], np.broadcast_to(real[:, None, None], (2, 1, 7, 7)))
    agree(y, right, "operator", np.float32)
    assert np.abs(_run(before, *inputs)[0] - right).max() > 0.1


_WRITTEN_OUT = """
    <ir_version: 8, opset_import: ["": 18]>
    layer (float[B, T, 15] x, float[B, T, 15] z, int64[B, T] attention_mask) => (float[B, T, 15] y)
    <int64[4] split = {{0, 0, 5, 3}}, int64[3] joined = {{0, 0, 15}}, int64[2] axes = {{1, 2}}, float half = {{0.5}},
     float none = {{0.0}}, float large = {{-3.0e38}}>
    {{
        reshaped_q = Reshape (x, split)
        reshaped_k = Reshape (z, split)
        reshaped_v = Reshape (x, split)
        q = Transpose <perm = [0, 2, 1, 3]> (reshaped_q)
        k = Transpose <perm = [0, 2, 3, 1]> (reshaped_k)
        v = Transpose <perm = [0, 2, 1, 3]> (reshaped_v)
        keys = Unsqueeze (attention_mask, axes)
        kept = Cast <to = 9> (keys)
        products = MatMul (q, k)
        {scores}
        p = Softmax <axis = -1> (scores)
        context = MatMul (p, v)
        back = Transpose <perm = [0, 2, 1, 3]> (context)
        y = Reshape (back, joined)
    }}
"""
_ADDED = "scaled = Mul (products, half)  bias = Where (kept, none, large)  scores = Add (scaled, bias)"
_REPLACED = "scaled = Mul (products, half)  scores = Where (kept, scaled, large)"


@pytest.mark.parametrize("scores", [_ADDED, _REPLACED], ids=["added", "replaced"])
def test_attention_becomes_one_operator(scores: str, tmp_path: Path) -> None:
    before = saved(_WRITTEN_OUT.format(scores=scores), tmp_path)
    done = fix(before, ["PX405"], tmp_path / "after.onnx")
    assert done.proof == ("the same outputs as the file in 18 calls, such as batch 2, 16/23 tokens",)
    kinds = [node.op_type for node in onnx.load(tmp_path / "after.onnx").graph.node]
    assert "MultiHeadAttention" in kinds
    assert not {"Softmax", "MatMul", "Transpose"} & {*kinds}
    x, z = _values(2, 7, 15), 3 * _values(2, 7, 15)[:, ::-1]
    mask = np.ones((2, 7), np.int64)
    mask[1, 4:] = 0
    q, k, v = (a.reshape(2, 7, 5, 3).transpose(0, 2, 1, 3) for a in (x, z, x))
    right = _attention(q * 0.5, k.swapaxes(2, 3), v, np.broadcast_to(mask[:, None, None] > 0, (2, 1, 7, 7)))
    (y,) = _run(tmp_path / "after.onnx", x, np.ascontiguousarray(z), mask)
    agree(y, right.transpose(0, 2, 1, 3).reshape(2, 7, 15), "operator", np.float32)


@pytest.mark.parametrize(
    ("scores", "reason"),
    [
        ("sum = Where (kept, products, large)  scores = Mul (sum, half)", "the sum of scores and mask is scaled"),
        ("scores = Where (kept, products, none)", "replaced by something that is no large negative number"),
        ("scores = Tanh (products)", "its scores go through Tanh"),
    ],
)
def test_attention_that_is_no_single_operator(scores: str, reason: str, tmp_path: Path) -> None:
    before = saved(_WRITTEN_OUT.format(scores=scores), tmp_path)
    with pytest.raises(PosexportError, match=reason):
        fix(before, ["PX405"], tmp_path / "after.onnx")


def test_repairs_of_decoders_are_compared_behind_a_cache(tmp_path: Path) -> None:
    text = """
        <ir_version: 8, opset_import: ["": 18]>
        decoder (float[B, T, 15] inputs_embeds, float[B, 5, P, 3] past_key, float[B, 5, P, 3] past_value)
            => (float[B, T, 15] y, float[B, 5, S, 3] present_key, float[B, 5, S, 3] present_value)
        <int64[4] split = {0, 0, 5, 3}, int64[3] joined = {0, 0, 15}>
        {
            reshaped = Reshape (inputs_embeds, split)
            heads = Transpose <perm = [0, 2, 1, 3]> (reshaped)
            present_key = Concat <axis = 2> (past_key, heads)
            present_value = Concat <axis = 2> (past_value, heads)
            keys = Transpose <perm = [0, 1, 3, 2]> (present_key)
            scores = MatMul (heads, keys)
            p = Softmax <axis = -1> (scores)
            context = MatMul (p, present_value)
            back = Transpose <perm = [0, 2, 1, 3]> (context)
            y = Reshape (back, joined)
        }"""
    done = fix(saved(text, tmp_path), ["PX405"], tmp_path / "after.onnx")
    assert done.proof[-1] == "the same outputs as the file in 2 calls behind a cache"
