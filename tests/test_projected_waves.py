"""Projected sinusoids as nodes: every kind by every lowering against the oracle, near and far; which one is taken."""

from pathlib import Path

import numpy as np
import onnx
import onnx.helper
import onnxruntime
import pytest
import torch

from posexport.encodings.waves import frequencies
from posexport.lowering import plan
from posexport.lowering.base import function
from posexport.lowering.target import Target
from posexport.lowering.waves import LOWERINGS
from posexport.lowering.waves.tabulated import REACH
from posexport.ops.base import DOMAIN
from posexport.ops.waves import WavesKind, kinds, oracle, project

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


def model(name: str, kind: WavesKind, weight: np.ndarray) -> bytes:
    """A graph of one node and its function, frequencies and weight constant."""
    lowering, target = BY_NAME[name], Target("cpu", 18)
    constants = {"frequencies": np.array(frequencies(weight.shape[1]), np.float32), "weight": weight}
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(kind.name, kind.inputs, kind.outputs, domain=DOMAIN, by_head=[-1, HEADS, SIZE])],
        "one",
        [onnx.helper.make_tensor_value_info("distances", onnx.TensorProto.INT64, ["W"])],
        [onnx.helper.make_tensor_value_info("vectors", TYPES[str(weight.dtype)], [HEADS, "W", SIZE])],
        [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    found = onnx.helper.make_model(
        graph,
        opset_imports=[onnx.helper.make_opsetid("", 18), onnx.helper.make_opsetid(DOMAIN, 1)],
        functions=[function(lowering, kind, target)],
        ir_version=10,
    )
    onnx.checker.check_model(found)
    text: bytes = found.SerializeToString()
    return text


def session(text: bytes, optimised: Path | None = None) -> onnxruntime.InferenceSession:
    """``optimised``: where to write the graph that the session runs."""
    options = onnxruntime.SessionOptions()
    if optimised is not None:
        options.optimized_model_filepath = str(optimised)
    return onnxruntime.InferenceSession(text, options, providers=["CPUExecutionProvider"])


def wanted(kind: WavesKind, distances: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """The oracle's answer for angles that are rounded once, as every definition's are."""
    out = np.zeros((HEADS, len(distances), SIZE))
    for at, distance in enumerate(distances):
        rounded = (np.float32(distance) * np.array(frequencies(weight.shape[1]), np.float32)).astype(np.float64)
        out[:, at] = oracle(np.ones(1), rounded, weight.astype(np.float64), heads=HEADS, layout=kind.layout)[:, 0]
    return out


@pytest.mark.parametrize("name", kinds())
@pytest.mark.parametrize("lowering", BY_NAME)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("channels", CHANNELS)
def test_every_lowering_projects_as_the_oracle(name: str, lowering: str, dtype: str, channels: int) -> None:
    kind = kinds()[name]
    weight = np.random.default_rng(channels).standard_normal((HEADS * SIZE, channels)).astype(dtype)
    run = session(model(lowering, kind, weight))
    for which, distances in DISTANCES.items():
        given = np.array(distances, np.int64)
        (got,) = run.run(None, {"distances": given})
        want = wanted(kind, given, weight)
        assert got.dtype == weight.dtype
        assert np.abs(got - want).max() <= 4 * np.finfo(dtype).eps * np.abs(want).max(), which


@pytest.mark.parametrize("name", kinds())
@pytest.mark.parametrize("channels", CHANNELS)
def test_torch_projects_as_the_oracle(name: str, channels: int) -> None:
    kind = kinds()[name]
    weight = np.random.default_rng(channels).standard_normal((HEADS * SIZE, channels))
    given = np.array(DISTANCES["both directions"])
    found = project(
        torch.from_numpy(given), frequencies(channels), torch.from_numpy(weight), heads=HEADS, layout=kind.layout
    )
    want = oracle(given, np.array(frequencies(channels)), weight, heads=HEADS, layout=kind.layout)
    assert np.abs(found.numpy() - want).max() <= 1e-13 * np.abs(want).max()


def test_layouts_and_signs_give_different_vectors() -> None:
    weight = np.random.default_rng(3).standard_normal((HEADS * SIZE, 12))
    half, interleaved = (
        oracle(np.array([5, -5]), np.array(frequencies(12)), weight, heads=HEADS, layout=kind.layout)
        for kind in (kinds()["HalfProjectedWaves"], kinds()["InterleavedProjectedWaves"])
    )
    assert np.abs(half - interleaved).max() > 0.5
    assert np.abs(half[:, 0] - half[:, 1]).max() > 0.5


@pytest.mark.parametrize(
    ("target", "taken"),
    [
        (Target("cpu", 23), "tabulated"),
        (Target("cuda", 23), "projected"),
        (Target("portable", 18), "projected"),
        (Target("portable", 18, flat=True), "projected"),
    ],
)
def test_the_table_is_for_a_runtime_that_makes_it_once(target: Target, taken: str) -> None:
    for name, kind in kinds().items():
        found = plan.family_of(name)
        assert found is not None
        assert plan.choose(found[0], kind, target).lowering.name == taken


def test_the_session_holds_the_table_as_a_constant(tmp_path: Path) -> None:
    weight = np.random.default_rng(3).standard_normal((HEADS * SIZE, 12)).astype(np.float32)
    kind = kinds()["HalfProjectedWaves"]
    session(model("tabulated", kind, weight), tmp_path / "optimised.onnx")
    graph = onnx.load(tmp_path / "optimised.onnx").graph
    assert "Sin" not in [node.op_type for node in graph.node]
    assert [HEADS, 2 * REACH + 1, SIZE] in [list(value.dims) for value in graph.initializer]
