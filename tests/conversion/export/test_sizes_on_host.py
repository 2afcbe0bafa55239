"""Graphs for a device get positions as sums of sizes: the same integers, and nothing that is sliced by them."""

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from posexport.base.targets.target import Target
from posexport.conversion.export.build import _lowered
from posexport.conversion.export.layout import BUNDLE
from posexport.graph.builder import Builder
from posexport.graph.lowering.lowering import Inputs, Lowering, Outputs, function
from posexport.graph.ops.attention import AttentionSpec
from posexport.graph.ops.spec import NodeSpec
from posexport.graph.passes.device.sizes_on_host import SizesOnHost
from posexport.graph.passes.graph_pass import Context
from posexport.graph.passes.pipeline import run
from posexport.run.providers import make_session
from posexport.sources.builtin import builtin_source
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


def on_host(graph: ir.Model, target: Target, specs: Mapping[str, NodeSpec] = MappingProxyType({})) -> None:
    run(graph, Context(target, specs=specs), ["device"], only=[SizesOnHost.name])


def settled(offset: str, target: Target) -> onnx.ModelProto:
    graph = ir.serde.deserialize_model(model(offset))
    on_host(graph, target)
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
    lowered = _lowered(source, recipe(target="cuda", opset=23), None, BUNDLE).model
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
    text = TABLES.format(rows=rows, numbers=", ".join("1" * 2 * rows)).replace("Asked", "ClippedScores")
    graph = ir.from_proto(onnx.parser.parse_model(text))
    on_host(graph, Target("cuda"))
    (function,) = graph.functions.values()
    assert {node.inputs[0].name for node in function if node.op_type == "Shape"} == asked
    feeds = {"q": np.zeros((1, 3, 7, 2), np.float32), "slots": np.arange(7)}
    found = make_session(ir.to_proto(graph).SerializeToString()).run(None, feeds)
    assert [int(each[0]) for each in found] == [5, 7, rows, 7]


class Sizes(Lowering[AttentionSpec]):
    """The sizes of the last axes of queries and keys, in the place of the context."""

    name = "sizes"
    accepts_packed_heads = True

    def build(self, g: Builder, spec: AttentionSpec, x: Inputs, target: Target) -> Outputs:
        axes = (1, 2) if spec.packed else (1, 2, 3)
        asked = g.Concat(*(g.size(x[name], axis) for name in "qk" for axis in axes), axis=0, name="context")
        return (asked, x["past_k"], x["past_v"]) if spec.appends else asked


def asked_sizes(spec: AttentionSpec) -> tuple[ir.Model, dict[str, np.ndarray], list[int]]:
    """A call of 3 queries and 5 keys, in 7 heads of 2 channels; its feeds, and the sizes that it asks for."""
    body = function(Sizes(), spec, Target("cuda", 23)).function
    keys = {"none": 5, "append": 3, "grow": 3, "static": 11}[spec.cache]

    def tokens(count: int) -> np.ndarray:
        return np.zeros((1, count, 14) if spec.packed else (1, 7, count, 2), np.float32)

    feeds = {name: np.zeros(1, np.float32) for name in spec.inputs}
    feeds |= {"q": tokens(3), "k": tokens(keys), "v": tokens(keys), "qpos": np.arange(2, 5), "kpos": np.arange(5)}
    ports = [
        ir.val(name, ir.DataType.from_numpy(array.dtype), [f"{name}_{axis}" for axis in range(array.ndim)])
        for name, array in feeds.items()
    ]
    call = ir.node(body.name, ports, domain=body.domain, num_outputs=len(spec.outputs))
    call.outputs[0].type, call.outputs[0].shape = ir.TensorType(ir.DataType.INT64), ir.Shape(["sizes"])
    call.outputs[0].name = "sizes"
    graph = ir.Graph(ports, call.outputs[:1], nodes=[call], opset_imports={"": 23, body.domain: 1}, name="g")
    shapes = [feeds[name].shape[1:] for name in "qk"]
    return ir.Model(graph, ir_version=10, functions=[body]), feeds, [size for shape in shapes for size in shape]


@pytest.mark.parametrize("cache", ["none", "append", "grow", "static"])
@pytest.mark.parametrize("packed", [False, True])
def test_channels_and_slots_are_not_taken_for_tokens(packed, cache):
    """Axis 2 of packed heads are channels; new keys and those of a static KV cache are not as many as positions."""
    spec = AttentionSpec(causal=True, packed=packed, cache=cache)
    graph, feeds, sizes = asked_sizes(spec)
    (body,) = graph.functions.values()
    on_host(graph, Target("cuda"), {body.name: spec})
    answer = make_session(ir.to_proto(graph).SerializeToString()).run(["sizes"], feeds)[0]
    assert answer.tolist() == sizes
    asked = {node.inputs[0].name for node in body if node.op_type == "Shape"}
    assert ("qpos" in asked, "kpos" in asked) == (True, cache == "none")


def test_nothing_is_taken_for_the_tokens_of_a_function_that_declares_none():
    """Whatever its inputs are called."""
    spec = AttentionSpec(causal=True)
    graph, _, _ = asked_sizes(spec)
    (body,) = graph.functions.values()
    on_host(graph, Target("cuda"))
    assert {node.inputs[0].name for node in body if node.op_type == "Shape"} == {"q", "k"}


#: what vision models and Longformer compute of sizes beside what counts or is fed
BESIDE = """
<ir_version: 8, opset_import: ["": 18]>
g (float[N] image, int64[M] ids) => (
  float[N] parts, bool[N] same, int64[N] chosen, int64[N] shifted, int64[M] bounded, int64[M] capped, bool[N] both,
  int64[K] counted, int64[2] shape, int64 total)
<int64 zero = {0}, int64 one = {1}, int64 two = {2}, int64[1] line = {-1}>
{
    size = Shape<start = 0, end = 1>(image)
    n = Squeeze(size)
    at = Range(zero, n, one)
    doubled = Mul(n, two)
    wide = Cast<to = 1>(at)
    width = Cast<to = 1>(doubled)
    parts = Div(wide, width)
    large = Greater(n, two)
    low = Less(at, two)
    same = Equal(low, large)
    both = And(low, large)
    shift = Where(large, two, zero)
    shifted = Sub(at, shift)
    negative = Neg(n)
    chosen = Where(low, negative, at)
    bounded = Clip(ids, one, n)
    capped = Clip(ids, , n)
    most = ReduceMax<keepdims = 0>(ids)
    count = Clip(most, one)
    counted = Range(zero, count, one)
    column = Reshape(count, line)
    shape = Concat<axis = 0>(size, column)
    total = Add(most, n)
}
"""


@pytest.mark.parametrize("length", [1, 2, 3, 7])
def test_what_follows_from_sizes_is_the_same_beside_what_a_device_holds(length):
    before = onnx.parser.parse_model(BESIDE)
    after = ir.from_proto(before)
    on_host(after, Target("cuda"))
    feeds = {"image": np.zeros(length, np.float32), "ids": np.array([2, -4, 9, 5])}
    answers_before, answers_after = (
        make_session(each.SerializeToString()).run(None, feeds) for each in (before, ir.to_proto(after))
    )
    for value, expected in zip(answers_after, answers_before, strict=True):
        assert (value.shape, value.dtype) == (expected.shape, expected.dtype)
        assert np.array_equal(value, expected)


def test_what_follows_from_sizes_is_written_where_a_device_reads_it():
    """By a Range, which reads sizes on the host, and casts of one; what a Range waits for is not asked for again."""
    graph = ir.from_proto(onnx.parser.parse_model(BESIDE))
    on_host(graph, Target("cuda"))
    producers = {output.name: node for node in graph.graph for output in node.outputs}

    def maker_of(value: ir.Value | None) -> ir.Node:
        node = None if value is None else value.producer()
        assert node is not None
        return node

    def makers_of(name: str) -> set[str]:
        return {each.producer().op_type for each in producers[name].inputs if each.producer() is not None}

    names = ("parts", "same", "both", "chosen", "capped", "shape", "total")
    assert {name: makers_of(name) for name in names} == {
        "parts": {"Cast"},
        "same": {"Less", "Cast"},
        "both": {"Less", "Cast"},
        "chosen": {"Less", "Range"},
        "capped": {"Range"},
        "shape": {"Shape", "Reshape"},
        "total": {"ReduceMax", "Squeeze"},
    }
    truth = maker_of(producers["same"].inputs[1])
    assert maker_of(truth.inputs[0]).op_type == "Range"
    known = maker_of(producers["column"].inputs[0])
    assert (known.op_type, maker_of(known.inputs[0]).op_type) == ("Squeeze", "Shape")
