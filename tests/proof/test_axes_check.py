"""The check of axes finds a graph that fixes one, without reading the large weights of its file."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from onnxruntime import InferenceSession

from posexport.conversion.convert import convert
from posexport.conversion.options import ConvertOptions
from posexport.errors import PosexportError
from posexport.proof.axes import check_axes, check_least
from posexport.proof.subjects.zero_weights import ZeroWeights
from posexport.run.providers import make_session
from posexport.sources import builtin

#: its embeddings have enough values to be zeros in the check
SETTINGS = ("layers=1", "hidden=60", "heads=5", "feedforward=37", "vocab=4411")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("axes") / "bundle"
    convert("encoder-rope", folder, ConvertOptions(settings=SETTINGS, threads=1, verify=False))
    return folder / "model.onnx"


def with_end(path: Path, change: onnx.NodeProto, *constants: onnx.TensorProto) -> Path:
    """A copy beside ``path`` whose output is that of ``change``, which reads ``before``."""
    model = onnx.load(path, load_external_data=False)
    (output,) = model.graph.output
    for node in model.graph.node:
        node.output[:] = ["before" if name == output.name else name for name in node.output]
    change.output[:] = [output.name]
    model.graph.node.append(change)
    model.graph.initializer.extend(constants)
    changed = path.with_name(f"{change.op_type}.onnx")
    onnx.save(model, changed)
    return changed


def int64(name: str, values: list[int]) -> onnx.TensorProto:
    return onnx.numpy_helper.from_array(np.array(values, np.int64), name)


def test_a_graph_with_a_fixed_axis_is_refused(bundle: Path) -> None:
    source = builtin.builtin_source("encoder-rope", task=None, settings_given=SETTINGS)
    check_axes(source, bundle)
    whole = helper.make_node("Reshape", ["before", "traced"], [])
    with pytest.raises(PosexportError, match="so an axis is not dynamic"):
        check_axes(source, with_end(bundle, whole, int64("traced", [2, 7, 60])))
    first = helper.make_node("Slice", ["before", "from", "to", "of"], [])
    constants = int64("from", [0]), int64("to", [2]), int64("of", [1])
    with pytest.raises(PosexportError, match="it should have"):
        check_axes(source, with_end(bundle, first, *constants))


def test_large_weights_are_zeros_and_small_ones_are_the_files(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
        g (float x, int64 k) => (float[m] large, float[n] small, int64[m] indices) {
            large = Mul (x, w)
            small = Mul (x, v)
            indices = Add (i, k)
        }"""
    model = onnx.parser.parse_model(text)
    many = 1 << 18
    for name, array in (
        ("w", np.full(many, 3, np.float32)),
        ("v", np.full(5, 3, np.float32)),
        ("i", np.arange(many)),
    ):
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, size_threshold=0, location="model.onnx.data")
    zeros = ZeroWeights(make_session)
    opened: list[InferenceSession] = [zeros(path), make_session(path)]
    (large, small, indices), (w, v, i) = (
        session.run(None, {"x": np.array(2, np.float32), "k": np.array(0)}) for session in opened
    )
    assert not large.any()
    assert large.shape == w.shape
    assert w.all()
    assert np.array_equal(small, v)
    assert np.array_equal(indices, i)
    assert i[-1] == many - 1


def test_the_least_sizes_of_a_decoder_have_no_past(tmp_path: Path) -> None:
    settings = ("layers=1", "hidden=32", "heads=2", "feedforward=24", "vocab=41")
    convert("decoder-rope", tmp_path / "bundle", ConvertOptions(settings=settings, threads=1, verify=False))
    source = builtin.builtin_source("decoder-rope", task=None, settings_given=settings)
    assert source.limits.kv_cache
    check_least(source, tmp_path / "bundle" / "model.onnx")
