"""When a point fails, the report says where: which layer, which stage."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from posexport.conversion.export.build import build
from posexport.proof.locate.capture import Checkpoint
from posexport.proof.locate.graph_values import Exposed
from posexport.proof.locate.locate import _Compared, _error, locate
from posexport.proof.report.points import Point
from posexport.sources.source import Source
from tests.parity_models import copied, exported, prove, source, with_nodes, with_weights, wrapped
from tests.small import recipe

LENGTHS = [2, 17]
FAILURE = Point(
    batch=3,
    length=17,
    padding="ragged",
    provider="cpu",
    precision="fp32",
    output="last_hidden_state",
    error=1.0,
    baseline_error=0.0,
    worst_baseline_error=0.0,
    tolerance=2e-6,
    verdict="fail",
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Source, onnx.ModelProto]]:
    folder = tmp_path_factory.mktemp("locate")
    absolute, relative = (
        source("encoder-absolute", "layers=2", task="fill-mask"),
        source("encoder-relative-key", "layers=2"),
    )
    return {
        "absolute": (absolute, exported(absolute, folder)),
        "formula": (relative, exported(relative, folder, "formula")),
        "blockwise": (relative, exported(relative, folder, "blockwise")),
    }


def located(right: Source, model: onnx.ModelProto) -> str:
    report = prove(right, model.SerializeToString(), lengths=LENGTHS, threads=1)
    assert not report.passed
    assert report.failure_location
    assert report.failure_location in report.describe()
    return report.failure_location


def over_queries(node: onnx.NodeProto) -> bool:
    if node.op_type == "Softmax":
        node.attribute[0].i = -2
    return node.op_type == "Softmax"


def subtracted(node: onnx.NodeProto) -> bool:
    found = node.op_type == "Add" and any(name.startswith("position_bias") for name in node.input)
    if found:
        node.op_type = "Sub"
    return found


def of_keys(node: onnx.NodeProto) -> bool:
    found = node.op_type == "MatMul" and node.input[1] == "v"
    if found:
        node.input[1] = "k"
    return found


@pytest.mark.parametrize("lowering", ["formula", "blockwise"])
@pytest.mark.parametrize(("change", "stage"), [(subtracted, "scores"), (over_queries, "softmax"), (of_keys, "context")])
def test_stages_of_attention(
    models: dict[str, tuple[Source, onnx.ModelProto]],
    lowering: str,
    change: Callable[[onnx.NodeProto], bool],
    stage: str,
) -> None:
    right, model = models[lowering]
    sentence = located(right, with_nodes(model, change))
    assert f"starts in layer 0, {stage}:" in sentence
    assert "encoder.groups.0.attention" in sentence


@pytest.mark.parametrize(
    ("weights", "where"),
    [
        ("encoding.table", "starts in table: "),
        (
            "groups.1.feedforward.outer.bias",
            "starts in layer 1, feed-forward: what leaves encoder.groups.1.feedforward",
        ),
        ("groups.0.attention_residual.norm.weight", "starts in layer 0, normalisation: "),
        ("groups.1.attention.query.bias", "starts in layer 1, attention: what leaves encoder.groups.1.attention.query"),
        ("head.dense.bias", "starts in output: what leaves head.dense"),
    ],
)
def test_weights(models: dict[str, tuple[Source, onnx.ModelProto]], weights: str, where: str) -> None:
    right, model = models["absolute"]
    sentence = located(
        right, with_weights(model, weights, lambda w: w + 0.1 * np.cos(np.arange(w.size)).reshape(w.shape))
    )
    assert where in sentence
    assert "does not hold the source's values of" in sentence
    assert weights in sentence


def test_a_table_of_distances(models: dict[str, tuple[Source, onnx.ModelProto]]) -> None:
    def change(table: np.ndarray) -> np.ndarray:
        table[20] *= -1
        return table

    right, model = models["formula"]
    sentence = located(right, with_weights(model, "groups.0.attention.encoding.table", change))
    assert "starts in layer 0, scores, table:" in sentence
    assert "encoder.groups.0.attention.encoding.table row 20" in sentence


@pytest.mark.all
def test_layers_that_share_weights_are_told_apart(tmp_path: Path) -> None:
    right = source("encoder-absolute", "layers=3", "layer_groups=1")
    path = tmp_path / "model.onnx"
    build(right, path, recipe(inline=True))
    model = onnx.load(path)
    softmaxes = [node for node in model.graph.node if node.op_type == "Softmax"]
    assert len(softmaxes) == 3
    softmaxes[1].attribute[0].i = -2
    assert "starts in layer 1, softmax: the softmax in encoder.groups.0.attention is wrong" in located(right, model)


@pytest.mark.parametrize("name", ["absolute", "formula", "blockwise"])
def test_in_a_right_model_every_value_is_right(models: dict[str, tuple[Source, onnx.ModelProto]], name: str) -> None:
    right, model = models[name]
    sentence = locate(right, model.SerializeToString(), FAILURE, threads=1)
    found = re.fullmatch(
        r"It could not be located: without ONNX Runtime's graph optimisations none of (\d+) values, up to (\S+), is "
        r"off by more than is allowed; at fault is an optimisation, what follows (\S+), or many small errors\.",
        sentence,
    )
    assert found, sentence
    assert found[2] == found[3] != ""
    looked_at = int(found[1])
    # each layer has at least: query, key, value, two of softmax, output, two norms, two linear maps, in and out
    assert looked_at >= 2 * 18


@pytest.mark.parametrize(
    ("error", "wrong"), [(1e-6, False), (2e-6, False), (3e-6, True), (np.inf, True), (np.nan, True)]
)
def test_a_value_is_wrong_where_it_is_off_by_more_than_is_allowed(error: float, wrong: bool) -> None:
    checkpoint = Checkpoint("encoder", 0, "out", np.zeros(3))
    assert _Compared(checkpoint, error, 2e-6).wrong is wrong


def test_errors_count_real_tokens_and_scores_that_are_not_masked() -> None:
    keep = np.array([[True, True, False], [True, False, False]])
    truth = np.full((2, 5, 3, 3), 2.0, np.float32)
    truth[:, :, 0, 2] = -1e30
    y = truth.copy()
    y[0, :, 2], y[1, :, 1:], y[:, :, 0, 2] = 9, 9, 0  # padding, and a score that is masked
    assert _error(y, Checkpoint("a", 0, "scores", truth), [keep]) == 0
    assert _error(y, Checkpoint("a", 0, "softmax", truth), [keep]) > 0.5
    y[0, 4, 1, 1] = 2.5
    assert _error(y, Checkpoint("a", 0, "scores", truth), [keep]) == 0.25
    y[0, 4, 1, 1] = np.nan
    assert _error(y, Checkpoint("a", 0, "scores", truth), [keep]) == np.inf
    rows = np.arange(18.0).reshape(2, 3, 3)
    off = rows + np.where(keep[..., None], 0, 1)
    assert _error(off, Checkpoint("a", 0, "out", rows), [keep]) == 0
    assert _error(off, Checkpoint("a", 0, "out", rows), []) > 0
    zeros = np.zeros((2, 3))
    assert _error(zeros, Checkpoint("a", 0, "out", zeros), []) == 0
    assert _error(zeros + 1e-9, Checkpoint("a", 0, "out", zeros), []) == np.inf


def test_blocks_of_queries_are_put_one_behind_the_other() -> None:
    """As a Scan gives them: [blocks, B, H, queries of one, S]."""
    name, x = "posexport_blocks/scores/entering/0", np.random.default_rng(0).standard_normal((3, 2, 5, 4, 7))
    ends = [onnx.helper.make_tensor_value_info(each, onnx.TensorProto.DOUBLE, [None] * 5) for each in ("x", name)]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], [name])], "g", ends[:1], ends[1:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)
    found = Exposed([ir.from_proto(model)], [], {}, []).run({"x": x}, provider="cpu", threads=1)
    assert np.array_equal(found[name], np.concatenate(list(x), 2))


def test_a_graph_without_module_paths_says_so(models: dict[str, tuple[Source, onnx.ModelProto]]) -> None:
    right, model = models["absolute"]
    bare = copied(model)
    for node in bare.graph.node:
        del node.metadata_props[:]
    sentence = locate(right, bare.SerializeToString(), FAILURE, threads=1)
    assert sentence == "It could not be located: no node of the graph says which module it was traced from."


@pytest.mark.all
def test_a_wrong_end_is_not_blamed_on_the_modules(
    models: dict[str, tuple[Source, onnx.ModelProto]], tmp_path: Path
) -> None:
    right, _ = models["formula"]
    wrong = wrapped(right, change=lambda y, _: (y[0] * 1.01,))
    sentence = located(right, exported(wrong, tmp_path))
    assert "could not be located" in sentence
