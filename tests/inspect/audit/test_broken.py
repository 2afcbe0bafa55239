"""Proven bundles, and the same graphs with one thing broken: audit --run is silent on the first, finds the second."""

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

import posexport

pytestmark = pytest.mark.all

Break = Callable[[onnx.GraphProto], None]


def _constant(graph: onnx.GraphProto, name: str, kind: int, values: list[float], shape: list[int]) -> str:
    graph.initializer.append(helper.make_tensor(name, kind, shape, values))
    return name


def _renamed(graph: onnx.GraphProto, output: onnx.ValueInfoProto) -> str:
    """Gives the value of an output another name, so that a node can compute the output from it."""
    name = f"{output.name}_before"
    for node in graph.node:
        for values in (node.input, node.output):
            values[:] = [name if value == output.name else value for value in values]
    return name


def mask_unread(graph: onnx.GraphProto) -> None:
    """All of attention_mask is 1."""
    for node in graph.node:
        node.input[:] = ["unmasked" if value == "attention_mask" else value for value in node.input]
    zero, one = (_constant(graph, f"m{number}", TensorProto.INT64, [number], []) for number in (0, 1))
    graph.node.insert(0, helper.make_node("Mul", ["attention_mask", zero], ["nothing"]))
    graph.node.insert(1, helper.make_node("Add", ["nothing", one], ["unmasked"]))


def rows_mixed(graph: onnx.GraphProto) -> None:
    """The first output has a part of the mean over the batch."""
    before = _renamed(graph, graph.output[0])
    axis, share = (
        _constant(graph, "axis", TensorProto.INT64, [0], [1]),
        _constant(graph, "s", TensorProto.FLOAT, [0.05], []),
    )
    graph.node.append(helper.make_node("ReduceMean", [before, axis], ["mean"]))
    graph.node.append(helper.make_node("Mul", ["mean", share], ["part"]))
    graph.node.append(helper.make_node("Add", [before, "part"], [graph.output[0].name]))


def outputs_constant(graph: onnx.GraphProto) -> None:
    """All outputs are 0."""
    zero = _constant(graph, "zero", TensorProto.FLOAT, [0.0], [])
    for output in graph.output:
        graph.node.append(helper.make_node("Mul", [_renamed(graph, output), zero], [output.name]))


def cache_scaled(graph: onnx.GraphProto) -> None:
    """Keys, values and states are not the ones that later tokens need."""
    share = _constant(graph, "share", TensorProto.FLOAT, [0.9], [])
    for output in graph.output:
        if output.name.startswith("present"):
            graph.node.append(helper.make_node("Mul", [_renamed(graph, output), share], [output.name]))


BROKEN: dict[str, tuple[Break, str]] = {
    "mask": (mask_unread, "PX702"),
    "rows": (rows_mixed, "PX701"),
    "constant": (outputs_constant, "PX705"),
    "cache": (cache_scaled, "PX704"),
}


@pytest.mark.parametrize("source", ["encoder-t5", "encoder-rope", "decoder-rope", "decoder-alibi"])
def test_a_proven_graph_and_the_same_one_broken(source: str, tmp_path: Path) -> None:
    bundle = tmp_path / "b"
    posexport.convert(source, bundle, settings={"layers": 1}, lengths=[1, 5])
    right = posexport.audit(bundle, run=True, select=["PX7"])
    assert (list(right), right.skipped) == ([], {})
    for name, (change, code) in BROKEN.items():
        if name == "cache" and source.startswith("encoder"):
            continue
        model = onnx.load(bundle / "model.onnx")
        change(model.graph)
        path = tmp_path / f"{name}.onnx"
        onnx.save(model, path)
        codes = {fault.code for fault in posexport.audit(path, run=True, select=["PX7"])}
        assert code in codes, f"{name}: {codes}"
