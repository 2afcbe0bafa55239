"""The range of float16: the largest magnitudes by layer, and overflows that a finite output would hide."""

import copy
import functools
import json
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

import posexport
from posexport.base.targets.dtypes import BY_PRECISION
from posexport.graph.precision.emulate import emulate
from posexport.proof import half_range
from posexport.proof.half_range import RangeLog

HALF = TensorProto.FLOAT16


class Norm(nn.Module):
    """A norm of its own whose square, of inputs of several hundreds, is beyond float16; its output is not."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.table = nn.Embedding(61, 20)
        self.factor = factor

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.table(input_ids) * self.factor
        return x / (torch.sqrt(torch.mean(torch.pow(x, 2), -1, keepdim=True)) + 1)


def log_of(nodes, inputs, outputs, weights=()) -> tuple[RangeLog, object]:
    """A watched session of an emulated copy."""

    def infos(types):
        return [helper.make_tensor_value_info(*each) for each in types]

    graph = helper.make_graph(nodes, "g", infos(inputs), infos(outputs), list(weights))
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    loaded = ir.from_proto(made)
    emulate(loaded, BY_PRECISION["fp16"])
    log = RangeLog()
    return log, log.session(ir.to_proto(loaded).SerializeToString())


def test_a_value_is_let_go_after_its_extremes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All values of a graph at the same time took 7.6 GB of the proof of a small encoder for CUDA in float16."""
    profiled = functools.partial(half_range.bundle_session, profile=tmp_path / "run")
    monkeypatch.setattr(half_range, "bundle_session", profiled)
    operators = ["Tanh", "Sigmoid", "Tanh", "Sigmoid", "Softmax"]
    nodes = [helper.make_node(kind, [f"v{i}"], [f"v{i + 1}"], name=f"n{i}") for i, kind in enumerate(operators)]
    _, session = log_of(nodes, [("v0", HALF, [3, 5])], [("v5", HALF, [3, 5])])
    session.run(["v5"], {"v0": np.ones((3, 5), np.float32)})
    events = json.loads(Path(session.end_profiling()).read_text())
    ran = [event["args"]["op_name"] for event in events if event["name"].endswith("_kernel_time")]
    assert ran[: ran.index("Softmax")].count("ReduceMax") == len(operators) - 1


def value(name, shape=None):
    return helper.make_tensor_value_info(name, HALF, shape)


def of_bodies():
    """An If whose then branch squares, and a Scan that sums what it gives."""
    then = helper.make_graph([helper.make_node("Mul", ["a", "a"], ["t"], name="square")], "then", [], [value("t")])
    other = helper.make_graph([helper.make_node("Identity", ["a"], ["e"])], "else", [], [value("e")])
    body = helper.make_graph(
        [
            helper.make_node("Add", ["carried", "each"], ["next"], name="sum"),
            helper.make_node("Identity", ["next"], ["out"]),
        ],
        "body",
        [value("carried", []), value("each", [])],
        [value("next", []), value("out", [])],
    )
    nodes = [
        helper.make_node("Cast", ["x"], ["a"], to=HALF, name="down"),
        helper.make_node("If", ["c"], ["q"], then_branch=then, else_branch=other),
        helper.make_node("Scan", ["zero", "q"], ["last", "sums"], body=body, num_scan_inputs=1),
        helper.make_node("Cast", ["sums"], ["y"], to=TensorProto.FLOAT),
    ]
    inputs = [("x", TensorProto.FLOAT, ["n"]), ("c", TensorProto.BOOL, [])]
    return log_of(nodes, inputs, [("y", TensorProto.FLOAT, ["n"])], [helper.make_tensor("zero", HALF, [], [0.0])])


def largest(log: RangeLog) -> dict[str, float]:
    """By the layer's name, which is made of the node's: of these graphs each node is a layer of its own."""
    return {found.node: found.largest for found in log.places()}


def test_branches_and_turns_are_seen() -> None:
    log, session = of_bodies()
    x = np.array([3, -100, 20], np.float32)
    (y,) = session.run(["y"], {"x": x, "c": np.array(False)})
    assert largest(log) == {"down": 100, "square": 0, "sum": 97}
    assert np.array_equal(y, [3, -97, -77])
    session.run(["y"], {"x": x, "c": np.array(True)})
    assert largest(log) == {"down": 100, "square": 10000, "sum": 10408}
    assert not log.overflows()
    session.run(["y"], {"x": np.array([300, 1], np.float32), "c": np.array(True)})
    assert [(found.node, found.value) for found in log.overflows()] == [("square", 90000)]
    assert largest(log)["sum"] == 10408


def test_the_least_number_that_rounds_to_infinity_is_an_overflow_of_its_own_node() -> None:
    """65504 is float16's largest, and 65520 half a step above it; what comes after infinity is not blamed."""
    nodes = [
        helper.make_node("Cast", ["x"], ["a"], to=HALF, name="down"),
        helper.make_node("ReduceSum", ["a"], ["s"], keepdims=0, name="total"),
        helper.make_node("Mul", ["s", "s"], ["q"], name="square"),
        helper.make_node("Cast", ["q"], ["y"], to=TensorProto.FLOAT),
    ]
    log, session = log_of(nodes, [("x", TensorProto.FLOAT, ["n"])], [("y", TensorProto.FLOAT, [])])
    session.run(["y"], {"x": np.array([100, 101], np.float32)})
    assert not log.overflows()
    session.run(["y"], {"x": np.array([32752, 32768], np.float32)})
    assert [(found.node, found.value) for found in log.overflows()] == [("total", 65520)]
    assert largest(log)["square"] == 201 * 201
    log, session = log_of([*nodes[:2], helper.make_node("Cast", ["s"], ["y"], to=TensorProto.FLOAT)],
                          [("x", TensorProto.FLOAT, ["n"])], [("y", TensorProto.FLOAT, [])])  # fmt: skip
    session.run(["y"], {"x": np.array([32752, 32752], np.float32)})
    assert not log.overflows()
    assert largest(log)["total"] == 65504


def test_an_overflow_without_a_number_is_no_largest() -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["a"], to=HALF, name="down"),
        helper.make_node("Reciprocal", ["a"], ["r"], name="turned"),
        helper.make_node("Cast", ["r"], ["y"], to=TensorProto.FLOAT),
    ]
    log, session = log_of(nodes, [("x", TensorProto.FLOAT, ["n"])], [("y", TensorProto.FLOAT, ["n"])])
    session.run(["y"], {"x": np.array([4], np.float32)})
    session.run(["y"], {"x": np.array([0], np.float32)})
    assert [(found.node, found.value) for found in log.overflows()] == [("turned", None)]
    assert largest(log) == {"down": 4, "turned": 0.25}


def test_what_is_fed_beyond_the_range_is_not_the_graphs() -> None:
    log, session = of_bodies()
    session.run(["y"], {"x": np.array([np.inf, 1], np.float32), "c": np.array(False)})
    assert not log.overflows()


@pytest.mark.parametrize("reader", ["Softmax", "Sigmoid"])
def test_masked_scores_may_overflow_on_the_way_to_a_softmax_only(reader: str) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["a"], to=HALF, name="down"),
        helper.make_node("Add", ["a", "mask"], ["scores"], name="masked"),
        helper.make_node("Reshape", ["scores", "shape"], ["rows"]),
        helper.make_node(reader, ["rows"], ["p"], name="reader"),
        helper.make_node("Cast", ["p"], ["y"], to=TensorProto.FLOAT),
    ]
    weights = [
        helper.make_tensor("mask", HALF, [2], [0.0, -65504.0]),
        helper.make_tensor("shape", TensorProto.INT64, [2], [1, -1]),
    ]
    log, session = log_of(nodes, [("x", TensorProto.FLOAT, ["n"])], [("y", TensorProto.FLOAT, None)], weights)
    session.run(["y"], {"x": np.array([5, -90], np.float32)})
    assert [found.node for found in log.overflows()] == ([] if reader == "Softmax" else ["masked"])
    session.run(["y"], {"x": np.array([5, 7], np.float32)})
    assert largest(log)["masked"] == (5 if reader == "Softmax" else 65594)


def test_what_is_infinite_is_named_where_it_came_to_be() -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["a"], to=HALF, name="down"),
        helper.make_node("Div", ["a", "zero"], ["d"], name="division"),
        helper.make_node("Add", ["d", "a"], ["s"], name="after"),
        helper.make_node("Cast", ["s"], ["y"], to=TensorProto.FLOAT),
    ]
    zero = helper.make_tensor("zero", HALF, [], [0.0])
    log, session = log_of(nodes, [("x", TensorProto.FLOAT, ["n"])], [("y", TensorProto.FLOAT, ["n"])], [zero])
    session.run(["y"], {"x": np.ones(2, np.float32)})
    assert [(found.node, found.value) for found in log.overflows()] == [("division", None)]


def test_an_absorbed_overflow_fails_and_names_the_node(tmp_path: Path) -> None:
    """Own and foreign: the square of 900 is infinite, what it divides becomes 0, which PyTorch's float16 gives too."""
    torch.manual_seed(0)
    given = {"example_inputs": {"input_ids": torch.randint(0, 61, (2, 7))}, "lengths": [5]}
    module = Norm(300.0)
    # the pass to half precision squares in float32
    right = posexport.convert(module, tmp_path / "half", precision="fp16", **given).report
    assert right is not None
    assert right.passed
    assert not right.overflows
    posexport.convert(module, tmp_path / "own", verify=False, example_inputs=given["example_inputs"])
    model = onnx.load(tmp_path / "own" / "model.onnx")
    del model.metadata_props[:]
    onnx.save(model, tmp_path / "foreign.onnx")
    targets = (tmp_path / "own", tmp_path / "foreign.onnx")
    reports = [posexport.verify(target, against=module, emulate="fp16", **given) for target in targets]
    for report in reports:
        assert not report.passed
        assert {point.verdict for point in report.points} == {"pass"}
        assert [found.op_type for found in report.overflows] == ["Pow"]
        assert "FAIL: overflow: Pow " in report.to_text()
        assert report.overflows[0].node in report.describe()


class Stack(nn.Module):
    """Two layers, each of which rounds once more than its module gives."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(61, 20)
        self.layers = nn.ModuleList([nn.Linear(20, 20) for _ in range(2)])

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.table(input_ids) * 30
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.mark.all
def test_the_figure_is_the_largest_of_the_modules_activations(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Stack()
    bundle = posexport.convert(
        module,
        tmp_path / "half",
        precision="fp16",
        example_inputs={"input_ids": torch.randint(0, 61, (2, 7))},
        lengths=[9, 200],
    )
    assert bundle.report is not None
    assert bundle.report.passed
    seen = {f"layers.{number}": 0.0 for number in range(2)}
    wide = copy.deepcopy(module).double()
    for number, layer in enumerate(wide.layers):

        def keep(_module, _inputs, output, name=f"layers.{number}"):
            seen[name] = max(seen[name], float(output.detach().abs().max()))

        layer.register_forward_hook(keep)
    # the grid has many ids: all of them, as every position is on its own
    wide(torch.arange(61)[None])
    found = {layer.layer.removeprefix("module."): layer.largest for layer in bundle.report.range}
    for name, most in seen.items():
        assert 0.99 * most < found[name] <= most * 1.01
    cost = bundle.manifest.cost
    assert cost is not None
    assert cost.range_on_grid == max(layer.largest for layer in bundle.report.range)
    assert cost.range_on_texts is None
