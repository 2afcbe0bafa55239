"""A model that is written a tensor at a time has the bytes that protobuf gives it."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from posexport.graph import encoded


@pytest.mark.parametrize("sizes", [(), (3,), (127,), (128,), (300, 1, 0, 20_000)])
def test_bytes_are_those_of_protobuf(sizes: tuple[int, ...], tmp_path: Path) -> None:
    tensors = [numpy_helper.from_array(np.arange(size, dtype=np.uint8), f"w{size}") for size in sizes]
    floats = helper.make_tensor("floats", TensorProto.FLOAT, [2], [0.5, 2.0])  # not as bytes
    named = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [named], [named], [*tensors, floats])
    graph.metadata_props.add(key="a", value="b")
    function = helper.make_function(
        "d", "F", ["x"], ["y"], [helper.make_node("Relu", ["x"], ["y"])], [helper.make_opsetid("", 24)]
    )
    model = helper.make_model(graph, functions=[function], producer_name="p", doc_string="text")
    model.metadata_props.add(key="k", value="v")
    encoded.write(model, tmp_path / "model.onnx")
    assert (tmp_path / "model.onnx").read_bytes() == model.SerializeToString()
    assert onnx.load(tmp_path / "model.onnx") == model
