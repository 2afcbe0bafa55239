"""Attention over kept keys first, with their number in place of a mask: the order, and what the pass takes it for."""

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from posexport.base.targets.target import Target
from posexport.graph.ops.attention import AttentionSpec
from posexport.graph.ops.cache import KeptKeys
from posexport.graph.ops.operator import DOMAIN, functions
from posexport.graph.passes import kept_keys, pipeline
from posexport.graph.passes.graph_pass import Context
from posexport.run.providers import make_session
from tests.small import shared
from tests.traces import Traces

LOWEST = np.finfo(np.float32).min
CUDA = Target("cuda", 24)


@pytest.fixture(scope="module")
def found():
    """From rows of kept keys to their order in each row and their number."""
    ports = [helper.make_tensor_value_info("mask", TensorProto.FLOAT, ["B", 1, 1, "S"])]
    outs = [helper.make_tensor_value_info(name, TensorProto.INT64, None) for name in ("order", "counts")]
    node = helper.make_node("KeptKeys", ["mask"], ["order", "counts"], domain=DOMAIN)
    model = helper.make_model(
        helper.make_graph([node], "g", ports, outs),
        opset_imports=[helper.make_opsetid("", 24), helper.make_opsetid(DOMAIN, 1)],
        functions=[ir.serde.serialize_function(each) for each in functions(KeptKeys, 24)],
        ir_version=10,
    )
    session = make_session(model.SerializeToString())

    def answer(rows: list[list[int]]) -> tuple[list[list[int]], list[int]]:
        kept = np.array(rows, bool)
        order, counts = session.run(None, {"mask": np.where(kept, 0, LOWEST).astype("f")[:, None, None]})
        return (order - np.arange(len(rows))[:, None] * kept.shape[1]).tolist(), counts.tolist()

    return answer


@pytest.mark.parametrize(
    ("rows", "order", "counts"),
    [
        ([[1]], [[0]], [1]),
        ([[0]], [[0]], [0]),
        ([[1, 1, 0], [1, 1, 1]], [[0, 1, 2], [0, 1, 2]], [2, 3]),
        ([[0, 0, 1, 1]], [[2, 3, 0, 1]], [2]),
        ([[0, 1, 0, 1], [0, 0, 0, 0]], [[1, 3, 0, 2], [0, 1, 2, 3]], [2, 0]),
    ],
)
def test_kept_keys_stand_first_in_their_order(found, rows, order, counts):
    assert found(rows) == (order, counts)


def counted(name: str, traces: Traces, target: Target = CUDA) -> tuple[set[bool], tuple[str, ...]]:
    """Whether the attention of a built-in model reads kept keys first, and why not."""
    from posexport.sources import builtin

    model = traces(builtin.builtin_source(name, task=None, settings_given=shared(name)), 24)
    result = pipeline.run(model, Context(target))["kept-keys"]
    specs = [AttentionSpec.of(node) for node in model.graph]
    return {spec.kept_known for spec in specs if spec is not None}, result.rejected


def test_attention_without_position_terms_is_counted(traces: Traces):
    assert counted("encoder-absolute", traces) == ({True}, ())


@pytest.mark.all
@pytest.mark.parametrize("name", ["encoder-alibi", "decoder-rope"])
def test_attention_with_terms_or_in_order_is_not(name, traces: Traces):
    assert counted(name, traces)[0] == {False}


def test_the_cpu_has_a_mask(traces: Traces):
    rejected = counted("encoder-absolute", traces, Target("cpu", 24))[1]
    assert rejected == ("a mask costs no other kernel but on a device",)


GRAPH = """
<ir_version: 10, opset_import: ["": 24, "posexport": 1]>
g (float[B, T, 8] q, float[B, T, 8] k, bool[B, 1, 1, T] drop, bool[B, 1, 1] sees) => (float[B, T, 8] y)
<float lowest = {{ {lowest} }}, float[1] zero = {{ 0.0 }}>
{{
    mask = Where(drop, lowest, zero)
    context = posexport.Attention<spec_mask = "keys", spec_packed = 1, heads = 2, kv_heads = 2>(q, k, k, mask)
    y = {reads}
}}
"""


@pytest.mark.parametrize(
    ("lowest", "reads", "reason"),
    [
        ("-3.4e38", "Where(sees, context, zero)", None),
        ("-10.0", "Where(sees, context, zero)", "nothing between"),
        ("-3.4e38", "Where(sees, zero, context)", "not put in place"),
        ("-3.4e38", "Mul(context, context)", "not put in place"),
    ],
)
def test_a_mask_between_and_queries_without_keys_are_left(lowest, reads, reason):
    model = ir.from_proto(onnx.parser.parse_model(GRAPH.format(lowest=lowest, reads=reads)))
    result = kept_keys.KeptKeys().apply(model, CUDA)
    assert result.nodes == (reason is None)
    assert all(reason in each for each in result.rejected) if reason else not result.rejected
