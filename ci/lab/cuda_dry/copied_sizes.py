"""What a graph copies from the device to the host, computed on the CPU: sizes of later tensors follow from it."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx

if TYPE_CHECKING:
    from onnxruntime import OrtValue


def copied_to_host(optimized: Path, feeds: "Mapping[str, OrtValue]") -> list[bytes]:
    """The contents of the graph's own MemcpyToHost nodes in order, for ``feeds``; those inside If and Loop are unknown.

    ``optimized``: the model as a session on CUDA has written it. Raises what ONNX Runtime raises where the nodes before
    the copies do not run on the CPU.
    """
    import onnxruntime

    model = onnx.load(str(optimized), load_external_data=False)
    copied = [node.input[0] for node in model.graph.node if node.op_type == "MemcpyToHost"]
    if not copied:
        return []
    before = _before(model.graph, copied)
    onnx.external_data_helper.load_external_data_for_model(before_model := _model(model, before), str(optimized.parent))
    session = onnxruntime.InferenceSession(before_model.SerializeToString(), providers=["CPUExecutionProvider"])
    host = {port.name: _on_host(feeds[port.name]) for port in session.get_inputs()}
    names = [output.name for output in session.get_outputs()]
    values = dict(zip(names, session.run_with_ort_values(names, host), strict=True))
    return [values[name].numpy().tobytes() for name in copied]


def _before(graph: Any, names: list[str]) -> Any:
    """The part of the graph that ``names`` are computed by, copies as Identity."""
    maker = {name: node for node in graph.node for name in node.output}
    left, seen, needed = list(names), set[str](), set[int]()
    while left:
        name = left.pop()
        if name in maker and name not in seen:
            needed.add(id(maker[name]))
            left += maker[name].input
            left += [each for part in maker[name].attribute for node in part.g.node for each in node.input]
        seen.add(name)
    nodes = [node for node in graph.node if id(node) in needed]
    for node in nodes:
        if node.op_type.startswith("Memcpy"):
            node.op_type, node.domain = "Identity", ""
    inputs = [port for port in graph.input if port.name in seen]
    outputs = [onnx.ValueInfoProto(name=name) for name in dict.fromkeys(names)]
    weights = [tensor for tensor in graph.initializer if tensor.name in seen]
    return onnx.helper.make_graph(nodes, "before_copies", inputs, outputs, weights)


def _model(model: Any, graph: Any) -> Any:
    return onnx.helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)


def _on_host(value: "OrtValue") -> "OrtValue":
    from onnxruntime import OrtValue

    if value.data_type() == "tensor(bfloat16)":  # NumPy has none; nothing that is copied reads their values
        return OrtValue.ortvalue_from_shape_and_type(value.shape(), onnx.TensorProto.BFLOAT16, "cpu", 0)
    return OrtValue.ortvalue_from_numpy(value.numpy(), "cpu", 0)
