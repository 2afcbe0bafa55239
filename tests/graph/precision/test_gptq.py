"""GPTQ: values by the algorithm's plain form, errors of products, and what is rounded to nearest for want of texts."""

from pathlib import Path

import numpy as np
import pytest

import posexport
from posexport.base.targets.precisions import PrecisionOptions
from posexport.base.targets.target import Target
from posexport.errors import PosexportError
from posexport.graph.precision.apply import apply
from posexport.graph.precision.blocks.rounding import factor, factors, nearest, second_order
from posexport.graph.precision.projections import projections
from posexport.run.tokenizer.byte_pair import train
from tests.graph.precision.test_blocks import EVERYWHERE
from tests.small import in_short, proven
from tests.text_graphs import answers, calibration, graph, matrices, rows
from tests.tolerances import agree

K, N = 70, 22  # three blocks of 32, the last filled up
TARGETS = [Target("cpu", 23), Target("portable", 21)]
GPTQ = PrecisionOptions(precision="int4", quantizer="gptq", calibrate="sha256 of texts")
ONE = f"HEAD g (float[r, {K}] x, float w) => (float z) {{ z = MatMul(x, w) }}"
X = rows(K)
matrix = matrices(7)
MIXED = matrix(9, K)


def correlated(count):
    """Rows of channels that depend on one another and differ in size, as activations of a trained model do."""
    return (matrix(count, 9) @ MIXED + 0.3 * matrix(count, K)) * np.geomspace(0.2, 5, K, dtype=np.float32)


def by_definition(w, x, size):
    """Frantar et al. 2023, section 3: the inverse of what is left of H anew for each row, all in float64."""
    rounded, x = w.astype(np.float64), x.astype(np.float64)
    scale = np.empty_like(rounded)
    for first in range(0, K, size):
        block = w[first : first + size]
        scale[first : first + size] = (-block[np.abs(block).argmax(0), range(w.shape[1])] / 8).astype(np.float32)
    moments = x.T @ x
    left = sorted(range(K), key=lambda row: -moments[row, row])
    moments += 0.01 * np.diag(moments).mean() * np.eye(K)
    while left:
        inverse = np.linalg.inv(moments[np.ix_(left, left)])
        row, *left = left
        error = rounded[row].copy()
        rounded[row] = np.clip(np.rint(rounded[row] / scale[row]), -8, 7) * scale[row]
        error -= rounded[row]
        rounded[left] -= np.outer(inverse[1:, 0], error / inverse[0, 0])
    return rounded


def moved(rounded, w, x):
    """Squared error of the products, of those in float."""
    return (((x @ rounded - x @ w) ** 2).sum() / ((x @ w) ** 2).sum()).item()


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
@pytest.mark.parametrize(("size", "together"), [(32, 128), (32, 19), (128, 19)])
def test_values(size, together, target, monkeypatch):
    # 19: errors of four groups of rows reach those behind, which takes more rows than K at the size that ships
    monkeypatch.setattr("posexport.graph.precision.blocks.rounding._TOGETHER", together)
    w, batches = matrix(K, N), [correlated(40), correlated(233)]
    every = np.concatenate(batches)
    expected = by_definition(w, every, size)
    rounded = second_order(w, factor((every.T @ every).astype(np.float64)), 4, size).real(4)[:, :K].T
    agree(rounded, expected, "rounded", np.float32)
    model = graph(ONE, target.opset, w=w)
    options = PrecisionOptions(precision="int4", quantizer="gptq", block_size=size, calibrate="sha256 of texts")
    classes = apply(model, X, target, options, calibration(*batches)).classes
    assert classes["linear weights"] == f"int4 in blocks of {size}, gptq"
    x = correlated(11)
    for (z,) in answers(model, x=x):
        agree(z, x @ expected, "rounded activations", np.int8, 2)
    unseen = correlated(300)
    assert moved(expected, w, unseen) < 0.4 * moved(nearest(w, 4, size).real(4)[:, :K].T, w, unseen)


def test_a_channel_that_is_always_zero():
    w, x = matrix(K, N), correlated(50)
    x[:, 3] = 0
    for seen in (x, 0 * x):
        rounded = second_order(w, factor((seen.T @ seen).astype(np.float64)), 4, 32).real(4)
        assert np.isfinite(rounded).all()
        assert np.abs(rounded[:, :K].T - w).max() < 1


def test_what_functions_read_is_rounded_to_nearest():
    weights = {"u": matrix(K, N), "v": matrix(K, N), "w": matrix(K, N), "b": matrix(N)}
    text = EVERYWHERE.replace("z = Add(z1, e)", "z2 = Add(z1, e)  y = MatMul(x, y_weight)  z = Add(z2, y)")
    text = text.replace("float b)", "float b, float y_weight)", 1)
    model = graph(text, 23, **weights, y_weight=matrix(K, N))
    run = calibration(correlated(90))
    for feeds in run.feeds:
        feeds["c"] = np.array(True)
    classes = apply(model, X, TARGETS[0], GPTQ, run).classes
    # the branches multiply what the main graph does; what the function does is not observed
    assert classes["linear weights"] == "int4 in blocks of 32, gptq, 1 of them rtn"


def test_a_weight_knows_all_its_inputs_on_all_texts():
    text = (
        f"HEAD g (float[r, {K}] x, float w) => (float y, float z) {{ a = Abs(x)  y = MatMul(a, w)  z = MatMul(x, w) }}"
    )
    batches = [correlated(120), 3 * correlated(31)]
    model = graph(text, w=matrix(K, N))
    (known,) = factors(model, projections(model, X), calibration(*batches)).values()
    every = np.concatenate([*batches, *map(np.abs, batches)]).astype(np.float64)
    moments = every.T @ every
    curvature = np.diag(moments)
    assert (np.diff(curvature[known.order]) <= 0).all()
    dampened = (moments + 0.01 * curvature.mean() * np.eye(K))[np.ix_(known.order, known.order)]
    inverse = known.upper.T.astype(np.float64) @ known.upper
    agree(inverse @ dampened, np.eye(K), "inverse in float32", np.float32)


@pytest.fixture
def texts(tmp_path) -> Path:
    """Beside them a tokenizer."""
    path = tmp_path / "texts.txt"
    path.write_text("the quick brown fox\njumps over the lazy dog\n\nand the dog sleeps\n" * 3)
    (tmp_path / "tokenizer.json").write_bytes(train(path, 40).data)
    return path


@pytest.mark.all
@pytest.mark.parametrize("name", in_short(["encoder-learned", "decoder-rope"], "decoder-rope".__eq__))
def test_convert(name, tmp_path, texts):
    options = {
        "settings": {"layers": 2, "hidden": 60, "heads": 5},
        "precision": "int4",
        "tokenizer": texts.with_name("tokenizer.json"),
        "lengths": [5],
        "threads": 1,
    }
    outcome = proven(name, tmp_path / name, quantizer="gptq", calibrate=texts, **options)
    stored, precision = outcome.manifest.precision_by_class, outcome.manifest.recipe
    assert ", gptq" in stored["linear weights"]
    assert precision.quantizer == "gptq"
    assert len(precision.calibrate or "") == 64
    with pytest.raises(PosexportError, match=r"--quantizer gptq .* got none; give --calibrate FILE"):
        posexport.convert("encoder-learned", tmp_path / "b", quantizer="gptq", **options)
    with pytest.raises(PosexportError, match=r"got --precision int4; .* --quantizer gptq"):
        posexport.convert("encoder-learned", tmp_path / "b", calibrate=texts, **options)
    assert not (tmp_path / "b").exists()


@pytest.mark.all
def test_several_precisions_in_a_layout(tmp_path, texts):
    """Whose one graph has a name of the layout's; what reads texts has them, and float32 none."""
    options = {"precision": ["fp32", "int8", "int4"], "quantizer": "gptq", "calibrate": texts, "verify": False}
    checkpoint, tokenizer = Path(__file__).parents[2] / "golden" / "bert-absolute", texts.with_name("tokenizer.json")
    posexport.convert(checkpoint, tmp_path / "a", layout="transformers.js", tokenizer=tokenizer, **options)
    int4, int8 = (
        posexport.load(tmp_path / "a", precision=name).manifest.precision_by_class for name in ("int4", "int8")
    )
    assert "gptq" in int4["linear weights"]
    assert "static" in int8["activations of linear projections"]
