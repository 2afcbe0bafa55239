"""Projected sinusoids as nodes: every kind by every lowering against the oracle, near and far; which one is taken."""

import numpy as np
import onnx
import onnx.helper
import onnx_ir as ir
import onnxruntime
import pytest
import torch

from posexport.base.targets.target import Target
from posexport.encodings.waves import frequencies
from posexport.errors import PosexportError
from posexport.graph.lowering import plan
from posexport.graph.lowering.functions import attach
from posexport.graph.lowering.waves import LOWERINGS
from posexport.graph.lowering.waves.tabulated import REACH
from posexport.graph.ops.operator import DOMAIN
from posexport.graph.ops.waves import LAYOUTS, Layout, ProjectionSpec, oracle, project
from posexport.graph.passes.graph_pass import Context
from posexport.graph.passes.pipeline import run
from tests.tolerances import agree

HEADS, SIZE = 5, 3
#: an even and an odd number of channels
CHANNELS = (12, 7)
BY_NAME = {lowering.name: lowering for lowering in LOWERINGS}
#: a step's, a call's, all of the table and one beyond it on either side, and none of the table
DISTANCES = {
    "one": [4],
    "both directions": range(-7, 12),
    "the table": range(-REACH, REACH + 1),
    "beyond": range(REACH - 3, REACH + 2),
    "before": range(-REACH - 1, -REACH + 2),
    "far": [70000, 70001],
    "not in order": [3, -9, 3],
}
TYPES = {"float32": onnx.TensorProto.FLOAT, "float16": onnx.TensorProto.FLOAT16}


def model(name: str, layout: Layout, weight: np.ndarray, target: Target, *, constant: bool = True) -> onnx.ModelProto:
    """A graph of one node and what passes and `attach` make of it; the map is constant or an input."""
    spec = ProjectionSpec(layout)
    given = {"frequencies": np.array(frequencies(weight.shape[1]), np.float32), "weight": weight}
    info = onnx.helper.make_tensor_value_info
    inputs = [info("distances", onnx.TensorProto.INT64, ["W"])]
    if not constant:
        inputs.append(info("weight", TYPES[str(weight.dtype)], given.pop("weight").shape))
    graph = onnx.helper.make_graph(
        [
            onnx.helper.make_node(
                spec.op_type, spec.inputs, spec.outputs, domain=DOMAIN, split_heads=[-1, HEADS, SIZE], **spec.attributes
            )
        ],
        "one",
        inputs,
        [info("vectors", TYPES[str(weight.dtype)], [HEADS, "W", SIZE])],
        [onnx.numpy_helper.from_array(value, name) for name, value in given.items()],
    )
    opsets = [onnx.helper.make_opsetid("", target.opset), onnx.helper.make_opsetid(DOMAIN, 1)]
    made = ir.from_proto(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10))
    run(made, Context(target, name))
    (chosen,) = attach(made, target, name).values()
    assert name in ("auto", chosen.lowering)
    found = ir.to_proto(made)
    onnx.checker.check_model(found)
    return found


def session(found: onnx.ModelProto) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(found.SerializeToString(), providers=["CPUExecutionProvider"])


def wanted(layout: Layout, distances: np.ndarray, weight: np.ndarray) -> np.ndarray:
    waves = np.array(frequencies(weight.shape[1]))
    return oracle(distances.astype(np.float64), waves, weight.astype(np.float64), heads=HEADS, layout=layout)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("lowering", BY_NAME)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("channels", CHANNELS)
def test_every_lowering_projects_as_the_oracle(layout: Layout, lowering: str, dtype: str, channels: int) -> None:
    weight = np.random.default_rng(channels).standard_normal((HEADS * SIZE, channels)).astype(dtype)
    projected = session(model(lowering, layout, weight, Target("cpu", 18)))
    for which, distances in DISTANCES.items():
        given = np.array(distances, np.int64)
        (got,) = projected.run(None, {"distances": given})
        want = wanted(layout, given, weight)
        assert got.dtype == weight.dtype
        # an angle is rounded to float32, unless it stands in a table
        far = max(abs(given)) * np.finfo(np.float32).eps * channels
        assert np.abs(got - want).max() <= (4 * np.finfo(dtype).eps + far) * np.abs(want).max(), which


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("channels", CHANNELS)
def test_torch_projects_as_the_oracle(layout: Layout, channels: int) -> None:
    weight = np.random.default_rng(channels).standard_normal((HEADS * SIZE, channels))
    given = np.array(DISTANCES["both directions"])
    found = project(
        torch.from_numpy(given), frequencies(channels), torch.from_numpy(weight), heads=HEADS, layout=layout
    )
    want = wanted(layout, given, weight)
    agree(found, want, "encoding", np.float64, 16)


def test_layouts_and_signs_give_different_vectors() -> None:
    weight = np.random.default_rng(3).standard_normal((HEADS * SIZE, 12))
    half, interleaved = (wanted(layout, np.array([5, -5]), weight) for layout in LAYOUTS)
    assert np.abs(half - interleaved).max() > 0.5
    assert np.abs(half[:, 0] - half[:, 1]).max() > 0.5


@pytest.mark.parametrize(
    ("target", "constant", "taken", "said"),
    [
        (Target("cpu", 23), True, "tabulated", ""),
        (Target("cpu", 23), False, "projected", "no constants"),
        (Target("cuda", 23), True, "projected", "wait for the device"),
        (Target("portable", 18), True, "projected", "use --target cpu"),
        (Target("portable", 18, inline=True), True, "projected", "use --target cpu"),
    ],
)
def test_a_table_stands_where_it_serves(target: Target, constant: bool, taken: str, said: str) -> None:
    weight = np.random.default_rng(3).standard_normal((HEADS * SIZE, 12)).astype(np.float32)
    found = model("auto", "half", weight, target, constant=constant)
    assert ([HEADS, 2 * REACH + 1, SIZE] in [list(each.dims) for each in found.graph.initializer]) == bool(not said)
    (node,) = found.graph.node
    spec = ProjectionSpec("half", tabulated=len(node.input) == 4)
    assert node.op_type == spec.name
    choice = plan.choose(next(each for each in plan.FAMILIES if each.name == "waves"), spec, target)
    assert choice.lowering.name == taken
    assert said in choice.rejected.get("tabulated", "")


def test_no_table_is_made_where_another_lowering_is_asked_for() -> None:
    weight = np.random.default_rng(3).standard_normal((HEADS * SIZE, 12)).astype(np.float32)
    found = model("projected", "half", weight, Target("cpu", 23))
    assert sum(np.prod(each.dims) for each in found.graph.initializer) < 1000
    with pytest.raises(PosexportError, match="tabulated does not apply to HalfProjectedWaves: a table makes the file"):
        model("tabulated", "half", weight, Target("portable", 18))
