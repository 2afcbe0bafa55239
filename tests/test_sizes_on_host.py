"""Graphs for a device get positions as sums of sizes: the same integers, and nothing that is sliced by them."""

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from posexport.export import sizes_on_host
from posexport.export.build import _lowered
from posexport.runtime.providers import make_session
from posexport.sources.builtin import builtin_source
from posexport.targets.target import Target
from tests.small import recipe

#: queries are the last T of the S keys, or not: these stand at 0
GRAPH = """
<ir_version: 8, opset_import: ["": 18, "posexport": 1]>
g (float[T] q, float[S] k, float[W, 3] table) =>
  (int64[N] first, int64[R] distances, int64[L] lowest, float[W, M] cut, int64[1] write_at, int64[1] before_used)
{{
    T = Shape<start = 0, end = 1>(q)
    S = Shape<start = 0, end = 1>(k)
    new = Squeeze(T)
    keys = Squeeze(S)
    zero = Constant<value_int = 0>()
    one = Constant<value_int = 1>()
    last = Constant<value_int = -1>()
    kpos = Range(zero, keys, one)
    counted = Range(zero, new, one)
    past = Sub(keys, new)
    qpos = Add(counted, {offset})
    at_first = Gather(qpos, zero)
    at_last = Gather(kpos, last)
    least = Sub(at_first, at_last)
    lowest = Reshape(least, last_1)
    write_at = Slice(qpos, first_1, end_1)
    before_used = Slice(kpos, last_1, end_64, first_1, end_1)
    first, distances, cut = posexport.Asked(table, qpos, kpos)
}}
<domain: "posexport", opset_import: ["": 18]>
Asked (table, qpos, kpos) => (first, distances, cut)
{{
    zeros = Constant<value_ints = [0]>()
    ones = Constant<value_ints = [1]>()
    none = Constant<value_int = 0>()
    step = Constant<value_int = 1>()
    q0 = Slice(qpos, zeros, ones)
    k0 = Slice(kpos, zeros, ones)
    first = Sub(q0, k0)
    S = Shape(kpos)
    count = Squeeze(S)
    steps = Range(none, count, step)
    moved = Sub(first, steps)
    W = Shape<start = 0, end = 1>(table)
    least = Min(moved, W)
    distances = Max(least, zeros)
    cut = Slice(table, zeros, first, ones)
}}
"""


def model(offset: str) -> onnx.ModelProto:
    parsed = onnx.parser.parse_model(GRAPH.format(offset=offset))
    for name, number in {"last_1": -1, "first_1": 0, "end_1": 1, "end_64": np.iinfo(np.int64).max}.items():
        parsed.graph.initializer.append(onnx.numpy_helper.from_array(np.array([number]), name))
    return parsed


def settled(offset: str, target: Target) -> onnx.ModelProto:
    graph = ir.serde.deserialize_model(model(offset))
    sizes_on_host.settle(graph, target)
    return ir.serde.serialize_model(graph)


def answers(proto: onnx.ModelProto, new: int, keys: int) -> list[np.ndarray]:
    feeds = {
        "q": np.zeros(new, np.float32),
        "k": np.zeros(keys, np.float32),
        "table": np.arange(12, dtype=np.float32).reshape(4, 3),
    }
    return make_session(proto.SerializeToString()).run(None, feeds)


def operators(proto: onnx.ModelProto) -> list[str]:
    return [node.op_type for body in (proto.graph, *proto.functions) for node in body.node]


@pytest.mark.parametrize("offset", ["past", "one"])
@pytest.mark.parametrize(("new", "keys"), [(1, 1), (1, 7), (3, 5), (4, 4)])
def test_the_integers_are_the_same(offset, new, keys):
    for before, after in zip(
        answers(model(offset), new, keys), answers(settled(offset, Target("cuda")), new, keys), strict=True
    ):
        assert np.array_equal(before, after)


def test_queries_that_are_not_the_last_keys_are_asked_where_they_stand():
    """The one is a graph whose first query is at the number of keys less that of queries, the other's is at 1."""
    function = {offset: settled(offset, Target("cuda")).functions[0] for offset in ("past", "one")}
    sliced = {
        offset: [node.input[0] for node in each.node if node.op_type == "Slice"] for offset, each in function.items()
    }
    assert sliced == {"past": ["table"], "one": ["qpos", "kpos", "table"]}


def test_bounds_of_what_counts_are_read_on_the_host():
    found = operators(settled("past", Target("cuda")))
    assert "Clip" in found
    assert "Min" not in found
    assert "Gather" not in found
    # the first and the last of what counts, in the graph itself
    assert [node.input[0] for node in settled("past", Target("cuda")).graph.node if node.op_type == "Slice"] == []


@pytest.mark.parametrize("target", ["cpu", "portable"])
def test_other_targets_keep_their_graphs(target):
    assert settled("past", Target(target)) == ir.serde.serialize_model(ir.serde.deserialize_model(model("past")))


def test_a_built_in_encoder_slices_by_sizes_alone():
    source = builtin_source("encoder-t5", task=None, settings_given=("layers=1", "hidden=20", "heads=5", "vocab=61"))
    lowered = _lowered(source, recipe(target="cuda", opset=23), frozenset()).model
    distance = next(each for each in lowered.functions.values() if each.name == "DistanceScores")
    sliced = [node.inputs[0].name for node in distance if node.op_type == "Slice"]
    assert "qpos" not in sliced
    assert "kpos" not in sliced


#: two calls of a function, with weights of the same rows or of other ones
TABLES = """
<ir_version: 8, opset_import: ["": 18, "posexport": 1]>
g (float[B, H, T, 2] q, int64[T] slots) => (int64[1] a, int64[1] b, int64[1] c, int64[1] d)
<float[5, 2] one = {{ 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 }}, float[{rows}, 2] two = {{ {numbers} }}>
{{
    a, b = posexport.Asked(q, one, slots, slots)
    c, d = posexport.Asked(q, two, slots, slots)
}}
<domain: "posexport", opset_import: ["": 18]>
Asked (q, table, qpos, kpos) => (rows, tokens)
{{
    rows = Shape<start = 0, end = 1>(table)
    tokens = Shape<start = 2, end = 3>(q)
}}
"""


@pytest.mark.parametrize(("rows", "asked"), [(5, {"qpos"}), (4, {"qpos", "table"})])
def test_sizes_that_layers_share_are_asked_of_what_they_share(rows, asked):
    """Tokens by their slots, and rows of a weight not at all where all calls have as many."""
    text = TABLES.format(rows=rows, numbers=", ".join("1" * 2 * rows))
    graph = ir.from_proto(onnx.parser.parse_model(text))
    sizes_on_host.settle(graph, Target("cuda"))
    (function,) = graph.functions.values()
    assert {node.inputs[0].name for node in function if node.op_type == "Shape"} == asked
    feeds = {"q": np.zeros((1, 3, 7, 2), np.float32), "slots": np.arange(7)}
    found = make_session(ir.to_proto(graph).SerializeToString()).run(None, feeds)
    assert [int(each[0]) for each in found] == [5, 7, rows, 7]
