"""Files of strangers: each gets one sentence, and nothing outside the folder is read."""

import os
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from posexport.errors import PosexportError
from posexport.inspect.audit.reading.read import MAX_NODES, read_model
from posexport.inspect.audit.reading.wire import INLINE, without_weights

#: inputs of `ci.lab.fuzz` that ended an audit
DAMAGED = Path(__file__).parent / "damaged"
WEIGHT = np.random.default_rng(5).standard_normal((17, 31)).astype(np.float32)


def model(*, external: dict[str, str] | None = None) -> onnx.ModelProto:
    tensor = numpy_helper.from_array(WEIGHT, "weight")
    if external is not None:
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in external.items():
            tensor.external_data.add(key=key, value=value)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["B", 17])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["B", 31])
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "weight"], ["y"])], "g", [x], [y], [tensor])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def refused(path: Path) -> str:
    with pytest.raises(PosexportError) as raised:
        read_model(path)
    return str(raised.value)


def test_large_weights_stay_on_disk_and_have_their_values(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model(), path)
    assert WEIGHT.nbytes > INLINE
    assert len(without_weights(path)) < WEIGHT.nbytes
    tensor = read_model(path).graph.initializers["weight"].const_value
    assert isinstance(tensor, ir.ExternalTensor)
    np.testing.assert_array_equal(tensor.numpy(), WEIGHT)


def test_weights_in_constants_bodies_and_functions_are_found(tmp_path: Path) -> None:
    inner = helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(WEIGHT, "inner"))
    body = helper.make_graph([inner], "then", [], [helper.make_tensor_value_info("c", TensorProto.FLOAT, [17, 31])])
    proto = model()
    proto.graph.node.append(helper.make_node("If", ["flag"], ["z"], then_branch=body, else_branch=body))
    proto.graph.input.append(helper.make_tensor_value_info("flag", TensorProto.BOOL, []))
    onnx.save(proto, tmp_path / "m.onnx")
    assert len(without_weights(tmp_path / "m.onnx")) < WEIGHT.nbytes
    branch = next(node for node in read_model(tmp_path / "m.onnx").graph if node.op_type == "If")
    (node,) = branch.attributes["then_branch"].as_graph()
    np.testing.assert_array_equal(node.attributes["value"].as_tensor().numpy(), WEIGHT)


@pytest.mark.parametrize(
    ("external", "said"),
    [
        ({"location": "../secret"}, "not a file in the model's folder"),
        ({"location": "/etc/passwd"}, "not a file in the model's folder"),
        ({"location": ""}, "not a file in the model's folder"),
        ({"location": "absent.data"}, "absent.data is missing"),
        ({"location": "linked.data"}, "is a link that leaves"),
        ({"location": "short.data"}, "needs bytes 0 to 2108"),
        ({"location": "whole.data", "offset": "8"}, "needs bytes 8 to 2116"),
        ({"location": "whole.data", "length": "16"}, "needs 2108 bytes, got 16"),
        ({"location": "whole.data", "offset": "-3"}, "needs bytes -3"),
        ({"location": "whole.data", "length": "many"}, "needs bytes"),
    ],
    ids=lambda value: "" if isinstance(value, str) else "-".join(value.values()).replace("/", "_"),
)
def test_external_data_stays_in_the_folder(external: dict[str, str], said: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(WEIGHT.tobytes())
    (folder / "whole.data").write_bytes(WEIGHT.tobytes())
    (folder / "short.data").write_bytes(WEIGHT.tobytes()[:-4])
    os.symlink(tmp_path / "secret", folder / "linked.data")
    (folder / "m.onnx").write_bytes(model(external=external).SerializeToString())
    text = refused(folder / "m.onnx")
    assert said in text
    assert "'weight'" in text


def test_external_data_in_the_folder_is_read(tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(b"12345678" + WEIGHT.tobytes())
    (tmp_path / "m.onnx").write_bytes(model(external={"location": "w", "offset": "8"}).SerializeToString())
    tensor = read_model(tmp_path / "m.onnx").graph.initializers["weight"].const_value
    assert tensor is not None
    np.testing.assert_array_equal(tensor.numpy(), WEIGHT)


def test_files_of_caches_and_installers(tmp_path: Path) -> None:
    """A Hugging Face cache has links into blobs; uv and pnpm give a file several names."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "0123"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    (blobs / "w").write_bytes(WEIGHT.tobytes())
    (blobs / "m").write_bytes(model(external={"location": "w"}).SerializeToString())
    onnx.save(model(), blobs / "whole")
    for name, blob in (("m.onnx", "m"), ("w", "w"), ("whole.onnx", "whole")):
        os.symlink(Path("../../blobs") / blob, snapshot / name)
    os.link(blobs / "whole", tmp_path / "second.onnx")
    for path in (snapshot / "m.onnx", snapshot / "whole.onnx", tmp_path / "second.onnx"):
        tensor = read_model(path).graph.initializers["weight"].const_value
        assert tensor is not None
        np.testing.assert_array_equal(tensor.numpy(), WEIGHT)


def test_sizes_and_bytes_that_disagree(tmp_path: Path) -> None:
    proto = model()
    proto.graph.initializer[0].dims[0] = 2**40
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    assert "needs 136339441844224 bytes, got 2108" in refused(tmp_path / "m.onnx")
    proto.graph.initializer[0].dims[0] = -1
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    assert "negative size" in refused(tmp_path / "m.onnx")


@pytest.mark.parametrize("kept", [0, 1, 7, 100, -1], ids=str)
def test_damaged_files(kept: int, tmp_path: Path) -> None:
    whole = model().SerializeToString()
    (tmp_path / "m.onnx").write_bytes(whole[:kept])
    assert "download or export it again" in refused(tmp_path / "m.onnx")


def _calling(name: str, called: list[str]) -> onnx.FunctionProto:
    nodes = [helper.make_node(inner, ["x"], [f"y{i}"], domain="f") for i, inner in enumerate(called)]
    last = helper.make_node("Identity", ["x"], ["z"])
    return helper.make_function(
        "f", name, ["x"], ["z"], [*nodes, last], [helper.make_opsetid("", 18), helper.make_opsetid("f", 1)]
    )


def test_functions_that_call_themselves_or_explode(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    proto = model()
    proto.opset_import.append(helper.make_opsetid("f", 1))
    proto.graph.node.append(helper.make_node("a", ["x"], ["loop"], domain="f"))
    proto.functions.extend([_calling("a", ["b"]), _calling("b", ["a"])])
    path.write_bytes(proto.SerializeToString())
    assert "calls itself" in refused(path)
    del proto.functions[:]
    proto.functions.extend(_calling("a" if not i else f"a{i}", [f"a{i + 1}"] * 2) for i in range(40))
    path.write_bytes(proto.SerializeToString())
    assert f"more than {MAX_NODES} nodes" in refused(path)


@pytest.mark.parametrize("path", sorted(DAMAGED.glob("*.onnx")), ids=lambda path: path.stem)
def test_files_that_ci_lab_fuzz_found(path: Path, tmp_path: Path) -> None:
    """Each one ended an audit with a traceback."""
    (tmp_path / "model.onnx").write_bytes(path.read_bytes())
    (tmp_path / "weights.data").write_bytes(bytes(32))
    assert refused(tmp_path / "model.onnx")
