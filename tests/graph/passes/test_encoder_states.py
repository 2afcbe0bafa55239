"""Keys and values that a merged decoder may not compute: the sizes of the whole, which the trace has, do not stay."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from posexport.base.spec import ENCODER_PAST, InputSpec
from posexport.base.targets.target import Target
from posexport.graph.passes.graph_pass import Context
from posexport.graph.passes.recognise.encoder_states import EncoderStates, forget_sizes
from posexport.graph.queries import constant
from tests.tolerances import agree

CONTEXT = Context(
    Target(),
    inputs=[
        InputSpec(name="encoder_hidden_states", dtype="float32", axes=["batch", "new", 6], role="values"),
        InputSpec(name="past", dtype="float32", axes=["batch", 3, ENCODER_PAST, 5], role="cache"),
    ],
)


@pytest.fixture
def model() -> ir.Model:
    """Keys of 3 heads of 5 channels, reshaped to the 7 tokens that the trace had, behind those of a cache."""
    text = """<ir_version: 10, opset_import: ["": 18]>
g (float[B, S, 6] encoder_hidden_states, float[B, 3, P, 5] past) => (float[B, 3, N, 5] keys)
  <float[6, 15] w = {WEIGHTS}, int64[4] sizes = {2, 7, 3, 5}, float[2, 7, 15] product, float[2, 7, 3, 5] split,
   float[2, 3, 7, 5] turned> {
  product = MatMul (encoder_hidden_states, w)
  split = Reshape <allowzero = 1> (product, sizes)
  turned = Transpose <perm = [0, 2, 1, 3]> (split)
  keys = Concat <axis = 2> (past, turned)
}"""
    weights = ", ".join(str(number / 7) for number in range(90))
    return ir.from_proto(onnx.parser.parse_model(text.replace("WEIGHTS", weights)))


@pytest.mark.parametrize("tokens", [0, 4])
def test_heads_are_split_at_any_length(model: ir.Model, tokens: int) -> None:
    assert EncoderStates().apply(model, CONTEXT).nodes == 1
    (reshape,) = (node for node in model.graph if node.op_type == "Reshape")
    shape = constant(reshape.inputs[1])
    assert shape is not None
    assert shape.tolist() == [0, 0, 3, 5]
    forget_sizes(model, CONTEXT.inputs)
    assert all(node.outputs[0].shape is None for node in model.graph if node.op_type != "Concat")
    rng = np.random.default_rng(0)
    states, past = (rng.standard_normal(size, np.float32) for size in ((2, tokens, 6), (2, 3, 8, 5)))
    (keys,) = ort.InferenceSession(ir.to_proto(model).SerializeToString()).run(
        None, {"encoder_hidden_states": states, "past": past}
    )
    new = (states @ (np.arange(90, dtype=np.float32) / 7).reshape(6, 15)).reshape(2, tokens, 3, 5)
    agree(keys, np.concatenate([past, new.swapaxes(1, 2)], 2), "operator", np.float32)


def test_without_a_cache_of_the_encoder_nothing_changes(model: ir.Model) -> None:
    assert EncoderStates().apply(model, Context(Target(), inputs=CONTEXT.inputs[:1])).nodes == 0
