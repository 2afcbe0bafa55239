"""``--keep-float``: projections, word embeddings and parts of packed projections stay in float32 by their names."""

import numpy as np
import onnx_ir as ir
import pytest

import posexport
from posexport.errors import PosexportError

TINY = {"layers": 1, "hidden": 60, "heads": 5, "feedforward": 76, "vocab": 300}
GROUPED = TINY | {"hidden": 100, "kv_heads": 1, "gated": "true"}


def converted(source, directory, **options):
    """The graph, and the bundle's answers to some tokens."""
    options = {"settings": TINY, "verify": False, "precision": "int8"} | options
    assert posexport.convert(source, directory, **options).good
    ids = np.random.default_rng(5).integers(3, 300, (2, 23))
    return ir.load(directory / "model.onnx"), posexport.load(directory).run({"input_ids": ids})


def floats(model):
    """Sizes of the float matrices of a graph, scales of blocks left aside."""
    shapes = [tuple(value.shape) for value in model.graph.initializers.values() if value.dtype == ir.DataType.FLOAT]
    return [shape for shape in shapes if len(shape) == 2 and min(shape) >= 16]


@pytest.mark.all
@pytest.mark.parametrize("precision", ["int8", pytest.param("int4", marks=pytest.mark.all)])
def test_what_leaves_nothing(precision, tmp_path):
    """And what matches nothing: one sentence, and nothing is written."""
    with pytest.raises(PosexportError, match=rf"--keep-float '\*' leaves none of \d+ weights .*{precision}; give pat"):
        converted("encoder-learned", tmp_path / "a", precision=precision, keep_float=["*"])
    with pytest.raises(PosexportError, match=r"--keep-float '\*nothing' matches none of \d+ weights; give a glob"):
        converted("encoder-learned", tmp_path / "a", precision=precision, keep_float=["*value*", "*nothing"])
    assert not list(tmp_path.iterdir())


@pytest.mark.all(but=("int8",))
@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_word_embeddings(precision, tmp_path):
    model, _ = converted("encoder-learned", tmp_path / "a", precision=precision, keep_float=["*embeddings.token*"])
    assert (300, 60) in floats(model)
    model, _ = converted("encoder-learned", tmp_path / "b", precision=precision)
    assert (300, 60) not in floats(model)


@pytest.mark.all
@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_a_part_of_a_packed_projection(precision, tmp_path):
    """A decoder's Q, K and V are one product, its gate and up another: all but what is named is quantized."""
    options = {"target": "cpu", "settings": GROUPED}
    kept = ["*attention.value*", "*feedforward.gate*"]
    _, exact = converted("decoder-rope", tmp_path / "a", **options, precision="fp32")
    packed, plain = converted("decoder-rope", tmp_path / "b", **options, precision=precision)
    model, fewer = converted("decoder-rope", tmp_path / "c", **options, precision=precision, keep_float=kept)
    assert sorted(floats(model)) == sorted([*floats(packed), (100, 20), (100, 76)])
    errors = [np.square(each["logits"] - exact["logits"]).mean() for each in (plain, fewer)]
    assert 0 < errors[1] < 0.95 * errors[0]


@pytest.mark.all
def test_a_name_in_one_graph_of_several(tmp_path):
    """A pattern need not match in all of them."""
    options = {"settings": TINY, "precision": "int8", "verify": False}
    assert posexport.convert("encoder-decoder-absolute", tmp_path / "a", **options, keep_float=["encoder.*value*"]).good
