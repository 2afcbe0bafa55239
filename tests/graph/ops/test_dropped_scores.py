"""What drops a score: the same numbers for all that reads masks, each of which leaves a key no weight."""

import numpy as np
import onnx_ir as ir
import pytest
import torch

from posexport.base.refusal import Refusal
from posexport.graph.ops.attention import AttentionSpec
from posexport.graph.ops.dropped_scores import DROPS, drops
from posexport.graph.passes import kept_keys
from posexport.graph.passes.padding.mask import padding_mask
from posexport.graph.passes.recognise import mask_structure, position_bias
from posexport.graph.passes.recognise import scores as of_softmax
from posexport.proof.locate.capture import Checkpoint
from posexport.proof.locate.locate import _error

LEAST = float(np.finfo(np.float32).min)
MASKS = pytest.mark.parametrize("number", [-1e3, -5e3, -1e4, -1e9, LEAST / 2, LEAST, -np.inf])
BIASES = pytest.mark.parametrize("number", [-999.0, -512.0, -1.0, 0.0, 1e4])
HEAD = '<ir_version: 10, opset_import: ["" : 18, "posexport" : 1]>'


def scalar(name: str, number: float) -> ir.Value:
    return ir.Value(name=name, const_value=ir.tensor(np.float32(number)), type=ir.TensorType(ir.DataType.FLOAT))


@MASKS
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_dropped_key_has_no_weight(number: float, dtype: type) -> None:
    scores = np.random.default_rng(0).uniform(-100, 100, (50, 9)).astype(dtype)
    scores[:, 4] += dtype(number)
    weights = np.exp(scores - scores.max(1, keepdims=True))
    assert not weights[:, 4].any()
    assert drops(number)
    assert drops(np.full(3, number)).all()
    assert drops(torch.full((3,), number)).all()


@BIASES
def test_a_bias_drops_nothing(number: float) -> None:
    assert not drops(number)
    assert number > DROPS


def causal(number: float) -> np.ndarray:
    return np.where(np.tri(5, dtype=bool), 0, np.float32(number))[None, None]


@MASKS
def test_masks_are_causality_to_all_that_reads_them(number: float) -> None:
    assert mask_structure._is("causal", causal(number))
    # constants that fill scores in, that a mask is chosen from and that it is cut at
    condition, scores, zero = ir.Value(name="c"), ir.Value(name="s"), scalar("zero", 0)
    fill = ir.node("Where", [condition, scalar("fill", number), scores])
    assert of_softmax._filled(fill, of_softmax.Scores()) is scores
    assert kept_keys._keeps_or_drops(ir.node("Where", [condition, zero, scalar("lowest", number)]).outputs[0])
    cut = ir.node("Max", [ir.node("Where", [condition, scalar("low", number), scores]).outputs[0], scalar("m", number)])
    total = position_bias._Sum()
    position_bias._split(cut.outputs[0], total)
    assert total == position_bias._Sum([scores], [(condition, float(np.float32(number)))])


@MASKS
def test_masks_are_padding(number: float) -> None:
    model = ir.from_onnx_text(f"""{HEAD} g (float[B, 2, T, 4] q, float[B, T] mask) => (float[B, 2, T, 4] y)
    <float one = {{1}}, float low = {{{max(number, LEAST)}}}, int64[2] axes = {{1, 2}}>
    {{ dropped = Sub (one, mask) added = Mul (dropped, low) bias = Unsqueeze (added, axes) y = Identity (q) }}""")
    values = {value.name: value for node in model.graph for value in node.outputs}
    spec = AttentionSpec(mask="keys", head_size=4)
    inputs = {**dict.fromkeys(["q", "k", "v"], model.graph.inputs[0]), "mask": values["bias"]}
    (last,) = [node for node in model.graph if node.op_type == "Identity"]
    node = ir.node(spec.op_type, [inputs[name] for name in spec.inputs], spec.attributes, domain="posexport")
    model.graph.insert_before(last, node)
    assert not isinstance(padding_mask(model), Refusal)


@BIASES
def test_biases_are_no_masks(number: float) -> None:
    assert not mask_structure._is("causal", causal(number))
    assert not kept_keys._keeps_or_drops(
        ir.node("Where", [ir.Value(name="c"), scalar("z", 0), scalar("n", number or 1)]).outputs[0]
    )


@MASKS
def test_how_low_a_masked_score_is_does_not_count(number: float) -> None:
    truth = np.array([[[[1.0, 2.0, number]]]])
    graph = np.array([[[[1.0, 2.0, LEAST]]]])
    assert _error(graph, Checkpoint("m", 0, "scores", truth), []) == 0
