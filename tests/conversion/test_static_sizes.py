"""Graphs with static sizes: proven, without nodes that compute sizes, and answering calls of any size within."""

import collections
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import posexport
from posexport.base.options.recipe import Recipe
from posexport.conversion.export.layout import BUNDLE
from posexport.conversion.graphs import Export
from posexport.errors import PosexportError
from posexport.graph.precision.calibration import Calibration
from posexport.proof.choose import ProofOptions, prove_model
from posexport.sources.builtin import builtin_source
from posexport.sources.static_sizes import sizes_of, with_int32, with_static_sizes
from tests.matrix.cases import GOLDEN
from tests.small import shared
from tests.tolerances import agree

SIZES = {"batch_size": 2, "sequence_length": 29}
#: what is computed from sizes in a graph of any size
OF_SIZES = {"Shape", "Range", "ConstantOfShape", "Expand", "If", "Loop", "Scan", "NonZero"}


def small(name: str) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in shared(name))


def converted(source: str, directory: Path, **options: Any) -> onnx.ModelProto:
    given: dict[str, Any] = {} if "/" in source else {"settings": small(source)}
    posexport.convert(source, directory, remark=lambda _: None, **given, **options)
    return onnx.load(directory / "model.onnx")


def shapes(model: onnx.ModelProto) -> dict[str, list[int]]:
    ends = [*model.graph.input, *model.graph.output]
    return {value.name: [axis.dim_value for axis in value.type.tensor_type.shape.dim] for value in ends}


def test_a_proven_graph_has_no_node_that_computes_sizes(tmp_path: Path) -> None:
    """Relative positions become constants; inputs are int32 as asked."""
    model = converted("encoder-t5", tmp_path / "bundle", static_sizes=SIZES, int32=True)
    assert shapes(model) == {
        "input_ids": [2, 29],
        "attention_mask": [2, 29],
        "token_type_ids": [2, 29],
        "last_hidden_state": [2, 29, 40],
    }
    assert {value.type.tensor_type.elem_type for value in model.graph.input} == {onnx.TensorProto.INT32}
    kinds = collections.Counter(node.op_type for node in model.graph.node)
    assert not (OF_SIZES - {"Expand"}) & set(kinds), kinds
    assert not model.functions


def test_calls_of_any_size_are_those_of_a_dynamic_graph(tmp_path: Path) -> None:
    """Rows in batches of two, the last one alone; shorter rows padded; padding on either side."""
    source = "encoder-shaw-kv"
    for name, options in (("fixed", {"static_sizes": SIZES}), ("any", {})):
        converted(source, tmp_path / name, verify=False, **options)
    fixed, dynamic = (posexport.load(tmp_path / name) for name in ("fixed", "any"))
    rng = np.random.default_rng(0)
    for batch, length in ((1, 1), (5, 17), (2, 29)):
        ids = rng.integers(0, 61, (batch, length))
        mask = np.ones_like(ids)
        mask[0, : length // 3] = 0
        mask[-1, length - length // 3 :] = 0
        feeds = {"input_ids": ids, "attention_mask": mask}
        ours, expected = (session.run(feeds)["last_hidden_state"] for session in (fixed, dynamic))
        assert ours.shape == expected.shape == (batch, length, 40)
        agree(ours[mask == 1], expected[mask == 1], "model in float32", np.float32)
    with pytest.raises(PosexportError, match="29"):
        fixed.run({"input_ids": np.ones((1, 30), np.int64)})


def test_onnx_runtime_itself_takes_one_size(tmp_path: Path) -> None:
    converted("encoder-rope", tmp_path / "bundle", verify=False, static_sizes=SIZES)
    session = onnxruntime.InferenceSession(tmp_path / "bundle" / "model.onnx", providers=["CPUExecutionProvider"])
    feeds = {value.name: np.ones(value.shape, np.int64) for value in session.get_inputs()}
    assert session.run(None, feeds)[0].shape == (2, 29, 40)
    with pytest.raises(Exception, match="invalid dimensions"):
        session.run(None, {name: array[:, :28] for name, array in feeds.items()})


def test_a_wrong_constant_fails_the_proof(tmp_path: Path) -> None:
    """One bias that was computed beforehand, changed by one part in ten."""
    converted("encoder-t5", tmp_path / "bundle", verify=False, static_sizes=SIZES)
    file = tmp_path / "bundle" / "model.onnx"
    model = onnx.load(file)
    given = shared("encoder-t5")
    source = with_static_sizes(builtin_source("encoder-t5", task=None, settings_given=given), SIZES)
    options = ProofOptions(lengths=[17, 29])
    assert prove_model(source, file, options=options).passed
    bias = next(tensor for tensor in model.graph.initializer if tensor.dims[-2:] == [29, 29])
    bias.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(bias) * np.float32(1.1), bias.name))
    onnx.save(model, file)
    assert not prove_model(source, file, options=options).passed


@pytest.mark.all
@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("longformer-formaskedlm", SIZES),
        ("deberta-v2-formaskedlm", SIZES),
        ("xlnet-model", SIZES),
        ("modernbert-formaskedlm", SIZES),
        ("swin-forimageclassification", {"batch_size": 1, "height": 32, "width": 32}),
    ],
)
def test_checkpoints_are_proven(name: str, sizes: dict[str, int], tmp_path: Path) -> None:
    model = converted(f"{GOLDEN}/{name}", tmp_path / "bundle", static_sizes=sizes)
    assert "Shape" not in {node.op_type for node in model.graph.node}


@pytest.mark.parametrize(
    ("static", "sentence"),
    [
        (["sequence_length"], "AXIS=SIZE"),
        (["sequence_len=3"], "did you mean sequence_length"),
        (["batch_size=0"], "from 1 on, got '0'"),
        ({"height": 3}, "height and width together"),
    ],
)
def test_a_wrong_size_is_refused(static: Any, sentence: str) -> None:
    with pytest.raises(PosexportError, match=sentence):
        sizes_of(static)


@pytest.mark.parametrize(
    ("name", "static", "sentence"),
    [
        ("decoder-rope", "batch_size=1", "a KV cache"),
        ("encoder-decoder-t5", "batch_size=1", "several graphs"),
        ("encoder-absolute", "sequence_length=99999", "takes lengths from 1 to"),
        ("encoder-rope", "height=3,width=3", "no input of encoder-rope has this axis"),
        ("vision-nope", "sequence_length=3", "no input of vision-nope has this axis; it has batch_size, height, width"),
        ("vision-swin", "height=3,width=3", "pixels and more"),
    ],
)
def test_a_size_that_does_not_fit_is_refused(name: str, static: str, sentence: str) -> None:
    source = builtin_source(name, task=None, settings_given=())
    with pytest.raises(PosexportError, match=sentence):
        with_static_sizes(source, sizes_of([static]))


def test_int32_is_for_one_graph() -> None:
    with pytest.raises(PosexportError, match="--int32 is for models of one graph"):
        with_int32(builtin_source("decoder-rope", task=None, settings_given=()))


def test_int8_is_proven_at_static_sizes(tmp_path: Path) -> None:
    """Its activations are measured on rows that are padded to the size."""
    model = converted("encoder-rope", tmp_path / "bundle", static_sizes=SIZES, precision="int8", int32=True)
    assert "MatMulInteger" in {node.op_type for node in model.graph.node}


def test_padding_is_not_measured() -> None:
    rows = np.arange(12.0).reshape(6, 2)
    feeds = {"input_ids": np.ones((2, 3), np.int32), "attention_mask": np.array([[1, 1, 0], [1, 0, 0]], np.int32)}
    calibration = Calibration([feeds], lambda _: pytest.fail("opens nothing"), "attention_mask")
    assert calibration.real(rows, feeds).tolist() == rows[[0, 1, 3]].tolist()
    assert len(calibration.real(rows[:2], feeds)) == 2, "one row for each text, after pooling"
    assert len(Calibration([feeds], calibration.open).real(rows, feeds)) == 6


def test_texts_are_measured_in_calls_of_the_static_sizes() -> None:
    source = builtin_source("encoder-rope", task=None, settings_given=shared("encoder-rope"))
    recipe = Recipe(task=source.task, opset=18, precision="int8", static_sizes=SIZES)
    texts = [{spec.name: np.ones((3, 5), np.int64) for spec in source.inputs}]
    calibration = Export(recipe, BUNDLE, texts)._calibration(source)
    assert calibration is not None
    assert [{array.shape for array in feeds.values()} for feeds in calibration.feeds] == [{(2, 29)}, {(2, 29)}]
    assert calibration.feeds[1][calibration.mask].sum() == 10, "the third row twice, of five tokens each"
