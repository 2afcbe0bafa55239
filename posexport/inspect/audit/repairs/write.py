"""Writes a repaired graph: nodes that were not changed keep their bytes, and weights are copied."""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import onnx_ir as ir

from posexport.graph.dataflow import dependents
from posexport.inspect.audit.analyses.sizes import Sizes
from posexport.inspect.audit.subject import Subject

if TYPE_CHECKING:
    import onnx


class Original:
    """A file as it was read, to write it again with some nodes changed.

    Attributes:
        functions: how many local functions the file has. They are inlined, as the audit sees them: a repair can then
            change one of their calls.

    Args:
        path: the file.
        subject: what it is, before anything is changed.
    """

    def __init__(self, path: Path, subject: Subject) -> None:
        import onnx

        graph = subject.graph
        self.path, self.graph, self.sizes = path, graph, subject.sizes
        self.proto = onnx.load(str(path), load_external_data=False)
        self.functions = len(self.proto.functions)
        if self.functions:
            self.proto = _inlined(self.proto)
        self._nodes = dict(zip(graph, self.proto.graph.node, strict=True))
        self._serialized = {node: ir.serde.serialize_node(node).SerializeToString() for node in graph}
        self._weights = {tensor.name for tensor in self.proto.graph.initializer}
        self._read = {value for value in _values(graph) if value.uses()}

    def save(self, output: Path, changed: Sequence[ir.Value]) -> int:
        """Write the graph as it is now, with its external data; returns how many nodes are new or changed.

        ``changed``: values that are computed in another way; sizes that the file states of what follows are left out.
        """
        self._remove_unread()
        nodes = [self._node(node) for node in self.graph]
        written = sum(id(node) not in map(id, self._nodes.values()) for node in nodes)
        new = [value for value in self.graph.initializers.values() if value.name not in self._weights]
        result = type(self.proto)()
        result.CopyFrom(self.proto)
        for domain, version in self.graph.opset_imports.items():
            if domain not in {each.domain for each in self.proto.opset_import}:
                result.opset_import.add(domain=domain, version=version)
        graph = result.graph
        del graph.node[:]
        graph.node.extend(nodes)
        graph.initializer.extend(
            ir.serde.serialize_tensor(value.const_value) for value in new if value.const_value is not None
        )
        unread = {value.name for value in self._read if not value.uses()}
        kept = [tensor for tensor in graph.initializer if tensor.name not in unread]
        del graph.initializer[:]
        graph.initializer.extend(kept)
        stale = {value.name for value in dependents(self.graph, changed)}
        stated = [info for info in graph.value_info if info.name not in stale]
        del graph.value_info[:]
        graph.value_info.extend(stated)
        for info, value in zip(graph.output, self.graph.outputs, strict=True):
            if info.name in stale:
                _free_sizes(info, value, self.sizes)
        output.write_bytes(result.SerializeToString())
        for name in self.external:
            if not (output.parent / name).exists():
                (output.parent / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(self.path.parent / name, output.parent / name)
        return written

    @property
    def external(self) -> list[str]:
        """Names of the files that hold weights."""
        entries = (entry for tensor in self.proto.graph.initializer for entry in tensor.external_data)
        return sorted({entry.value for entry in entries if entry.key == "location"})

    def _remove_unread(self) -> None:
        """Remove nodes and new weights that nothing reads, except those that nothing read in the file."""
        for node in reversed(list(self.graph)):
            if any(y.uses() or y.is_graph_output() for y in node.outputs):
                continue
            if node not in self._nodes or not self._read.isdisjoint(node.outputs):
                self.graph.remove(node, safe=True)
        for name, value in list(self.graph.initializers.items()):
            if name not in self._weights and not value.uses() and not value.is_graph_output():
                del self.graph.initializers[name]

    def _node(self, node: ir.Node) -> "onnx.NodeProto":
        """The file's message of a node that was not changed, else a new one."""
        now: onnx.NodeProto = ir.serde.serialize_node(node)
        same = self._serialized.get(node) == now.SerializeToString()
        # inference of sizes names the tensors of constants
        return self._nodes[node] if same or (node.op_type == "Constant" and node in self._nodes) else now


def _free_sizes(info: "onnx.ValueInfoProto", value: ir.Value, sizes: Sizes) -> None:
    """Remove the example's sizes from what the file declares of an output: axes that are free now get their names."""
    for declared, size in zip(info.type.tensor_type.shape.dim, sizes.of(value) or (), strict=False):
        if declared.HasField("dim_value") and isinstance(size, str) and sizes.is_free(size):
            declared.Clear()
            name = sizes.text(size)
            if name.isidentifier():
                declared.dim_param = name


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.initializers.values()
    for node in graph:
        yield from node.outputs


def _inlined(proto: "onnx.ModelProto") -> "onnx.ModelProto":
    """The model without local functions, its nodes in the order of `read_model`; weights on disk stay there."""
    from onnx_ir.passes.common import InlinePass

    model = ir.serde.deserialize_model(proto)
    InlinePass()(model)
    inlined: onnx.ModelProto = ir.serde.serialize_model(model)
    return inlined
