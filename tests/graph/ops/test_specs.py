"""Records of nodes: what a traced graph says of them, and how functions of one graph are named."""

from dataclasses import replace

import onnx_ir as ir
import pytest

from posexport.base.targets.target import Target
from posexport.graph.edits import unused
from posexport.graph.lowering.functions import attach
from posexport.graph.ops import operator as registry
from posexport.graph.ops.attention import AttentionSpec, BiasSpec
from posexport.graph.ops.operator import DOMAIN, OPERATORS
from posexport.graph.ops.rotation import RotationSpec
from posexport.graph.ops.spec import NodeSpec
from posexport.graph.ops.waves import ProjectionSpec

SPECS: list[NodeSpec] = [
    AttentionSpec(),
    AttentionSpec("ClippedScores", "keys", True, values="ClippedValues", grouped=True, packed=True, head_size=8),
    AttentionSpec("DistanceScores", "keys", cache="append", bias="tiled", sink=True),
    AttentionSpec(base="AdditiveScores", mask="pairs"),
    BiasSpec("DistanceScores", "keys", True, tiled=True),
    RotationSpec("interleaved", partial=True, shared=True),
    RotationSpec(packed=True, squeezed=True),
    ProjectionSpec("half", tabulated=True),
]


def node_of(spec: NodeSpec, **attributes: float) -> ir.Node:
    """A node of a record, with inputs of its names."""
    like = ir.node("Old", [], attributes, domain=DOMAIN, name="n")
    return spec.node({name: ir.val(name, ir.DataType.FLOAT, ["a", 3, "b", 8]) for name in spec.inputs}, like=like)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_a_node_holds_its_record_and_inputs_by_name(spec: NodeSpec) -> None:
    node = node_of(spec, scale=0.5)
    assert type(spec).of(node) == spec
    assert all(other.of(node) is None for other in {type(each) for each in SPECS} - {type(spec)})
    named = spec.named_inputs(node)
    assert [None if value is None else value.name for value in named.values()] == list(named)
    assert len(node.outputs) == len(spec.outputs)
    again = replace(spec).node(named, like=node)
    assert again.attributes["scale"].as_float() == 0.5
    assert type(spec).of(again) == spec


def test_a_record_replaces_that_of_the_node_before() -> None:
    causal = node_of(AttentionSpec("DistanceScores", "keys", True, grouped=True))
    spec = BiasSpec("DistanceScores", "keys")
    inputs = {name: ir.val(name) for name in spec.inputs}
    assert BiasSpec.of(spec.node(inputs, like=causal)) == spec


def test_functions_of_one_graph() -> None:
    """Attention of two head sizes has one function, and every call declares what it says; names are distinct."""
    nodes = [node_of(AttentionSpec(mask="keys", head_size=size), scale=0.5, lowest=-1e30) for size in (8, 16, 8)]
    inputs = [value for node in nodes for value in node.inputs if value is not None]
    for number, value in enumerate(inputs):
        value.name = f"{value.name}_{number}"
    graph = ir.Graph(inputs, [node.outputs[0] for node in nodes], nodes=nodes, opset_imports={"": 18}, name="g")
    model = ir.Model(graph, ir_version=10)
    chosen = attach(model, Target("portable", 18), "formula")
    assert [node.op_type for node in model.graph] == ["MaskedAttention"] * 3
    assert {name: choice.nodes for name, choice in chosen.items()} == {"MaskedAttention": 3}
    assert [set(node.attributes) for node in model.graph] == [{"scale"}] * 3
    (identifier,) = model.functions
    taken = {"MaskedAttention": model.functions[identifier]}
    assert unused("MaskedAttention", taken, between="") == "MaskedAttention2"


def test_an_operator_that_is_registered_later_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    known = AttentionSpec("DistanceScores")
    assert known.inputs
    later = replace(OPERATORS["DistanceScores"], name="LaterScores", own=("weights",))
    monkeypatch.setitem(registry.OPERATORS, "LaterScores", later)
    spec = AttentionSpec.of(node_of(AttentionSpec("LaterScores")))
    assert spec is not None
    assert spec.name == "LaterAttention"
    assert spec.inputs == ["q", "k", "v", "scores_weights", "qpos", "kpos"]
    assert list(spec.operators) == ["scores"]
