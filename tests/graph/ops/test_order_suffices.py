"""Where attention to a static KV cache needs no mask: causal order drops all that the mask does."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from posexport.conversion.convert import convert
from posexport.conversion.options import ConvertOptions
from posexport.graph.ops.cache import OrderSuffices
from posexport.graph.ops.operator import DOMAIN, functions
from posexport.run.providers import make_session

LOWEST = -32752.0


@pytest.fixture(scope="module")
def suffices():
    """The function as a session: rows of kept keys, and whether the operator takes the call."""
    import onnx_ir as ir

    decoder = [helper.make_tensor_value_info("mask", TensorProto.FLOAT, ["B", 1, 1, "S"])]
    decoder += [helper.make_tensor_value_info(name, TensorProto.BOOL, []) for name in ("takes", "y")]
    node = helper.make_node("OrderSuffices", ["mask", "takes"], ["y"], domain=DOMAIN)
    model = helper.make_model(
        helper.make_graph([node], "g", decoder[:2], decoder[2:]),
        opset_imports=[helper.make_opsetid("", 23), helper.make_opsetid(DOMAIN, 1)],
        functions=[ir.serde.serialize_function(each) for each in functions(OrderSuffices, 23)],
        ir_version=10,
    )
    session = make_session(model.SerializeToString())

    def answer(rows: list[list[int]], takes: bool = True) -> bool:
        mask = np.where(np.array(rows, bool), 0, LOWEST).astype(np.float32)[:, None, None]
        return bool(session.run(None, {"mask": mask, "takes": np.array(takes)})[0])

    return answer


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([[1]], True),
        ([[0]], True),
        ([[1, 1, 1]], True),
        ([[1, 1, 0], [1, 0, 0]], True),  # prompts of other lengths, padded on the right
        ([[0, 1, 1]], False),
        ([[1, 1, 1], [0, 1, 1]], False),
        ([[1, 0, 1]], False),  # a step behind a prompt that was padded on the right
    ],
)
def test_a_dropped_key_before_a_kept_one_needs_the_mask(suffices, rows, expected):
    assert suffices(rows) is expected


def test_a_call_that_the_operator_does_not_take_goes_another_way(suffices):
    assert suffices([[1, 1]], takes=False) is False


@pytest.mark.all
# what the operator leaves in unused slots is cast to 16 bits as well
@pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning")
def test_both_ways_are_proven_in_emulation(tmp_path):
    options = ConvertOptions(
        settings=("layers=2", "hidden=32", "heads=4", "kv_heads=2", "vocab=61"),
        target="cuda",
        cache="static",
        precision="fp16",
    )
    done = convert("decoder-rope", tmp_path / "bundle", options)
    assert done.report is not None
    assert done.report.passed, done.report.describe()
    assert not done.report.unreached
    held = onnx.load(tmp_path / "bundle" / "model.onnx")
    biases = [
        len(node.input) > 10
        for function in held.functions
        for outer in function.node
        for attribute in outer.attribute
        for node in _all(attribute.g)
        if node.op_type == "GroupQueryAttention"
    ]
    assert biases == [False]  # what needs one goes by another operator


def _all(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """The nodes of a branch, and those of its own branches."""
    inner = [node for each in graph.node for attribute in each.attribute for node in _all(attribute.g)]
    return [*graph.node, *inner]
