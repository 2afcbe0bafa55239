"""Graphs for a device: products of as many matrices in both factors, sizes of slices by their bounds; same numbers."""

import numpy as np
import onnx_ir as ir
import pytest

from posexport.base.targets.target import Target
from posexport.graph.ops.operator import OPERATORS
from posexport.graph.passes import pipeline
from posexport.graph.passes.graph_pass import Context
from posexport.run.providers import make_session
from tests.graph.ops.test_ops import inputs, one_node
from tests.tolerances import agree

#: operator -> factors that are copied for every row, head or block
COPIED = {"RelativeKeyQueryScores": 1, "DisentangledScores": 2, "HeadDistanceScores": 1, "FireScores": 1}


def settled(name: str, case, target: str = "cuda") -> tuple[ir.Model, np.ndarray, np.ndarray]:
    """The operator's model rewritten, and what it answers before and after."""
    given = inputs(OPERATORS[name], case, np.float32)
    proto = one_node(OPERATORS[name], given)
    model = ir.from_proto(proto)
    pipeline.run(model, Context(Target(target)), ["device"], only=["equal-batches", "slice-sizes"])
    after = ir.to_proto(model)
    before, now = (make_session(each.SerializeToString()).run(None, given)[0] for each in (proto, after))
    return model, before, now


def operators(model: ir.Model, name: str) -> list[str]:
    (function,) = (each for each in model.functions.values() if each.name == name)
    return [node.op_type for node in function]


@pytest.mark.parametrize("name", COPIED)
@pytest.mark.parametrize("index", [1, 2, 3])
def test_a_factor_with_fewer_batch_axes_is_copied(name, index):
    model, before, now = settled(name, OPERATORS[name].cases[index])
    assert operators(model, name).count("Expand") - (name == "FireScores") == COPIED[name]
    agree(now, before, "operator", np.float32)


def test_a_single_matrix_is_not():
    model, *_ = settled("RelativeKeyScores", OPERATORS["RelativeKeyScores"].cases[1])
    assert "Expand" not in operators(model, "RelativeKeyScores")


@pytest.mark.parametrize("index", range(len(OPERATORS["ClippedValues"].cases)))
def test_what_a_slice_keeps_follows_from_its_bounds(index):
    model, before, now = settled("ClippedValues", OPERATORS["ClippedValues"].cases[index])
    (function,) = (each for each in model.functions.values() if each.name == "ClippedValues")
    assert "rest" not in [node.inputs[0].name for node in function if node.op_type == "Shape"]
    assert np.array_equal(before, now)


def test_the_cpu_keeps_its_functions():
    model, *_ = settled("FireScores", OPERATORS["FireScores"].cases[1], "cpu")
    assert operators(model, "FireScores").count("Expand") == 1
