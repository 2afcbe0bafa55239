"""Opens an ONNX file that a stranger wrote, as onnx_ir's model with its weights on disk.

Nothing is believed: paths, offsets and sizes of external data, products of sizes, nesting, functions that call each
other. No library with operators is loaded, and nothing of the graph is run.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from posexport.errors import PosexportError
from posexport.graph.queries import with_bodies
from posexport.inspect.audit.reading.nodes import check_nodes
from posexport.inspect.audit.reading.wire import without_weights
from posexport.run.bundle.read import locate

if TYPE_CHECKING:
    import onnx

#: nodes of a graph once its functions are expanded; functions that call each other can make 2^30 of a few bytes
MAX_NODES = 1_000_000
_CALLS = 50
#: versions of operators are below
_OPSETS = 1 << 31


def read_model(path: Path) -> ir.Model:
    """The model in ``path`` with local functions inlined; large weights stay on disk and are mapped when read.

    Raises:
        PosexportError: no ONNX model, or one that refers to bytes or files that it may not, with the tensor's name.
        OSError: the file cannot be read.
    """
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # onnx brings it
    from onnx_ir.passes.common import InlinePass

    serialized = without_weights(path)
    try:
        proto = onnx.ModelProto.FromString(serialized)
    except DecodeError as err:
        raise PosexportError(f"{path} is no ONNX model, or it is damaged ({err}); download or export it again") from err
    if not proto.HasField("graph"):
        raise PosexportError(f"{path} has no graph, which every ONNX model has; give an .onnx file")
    if proto.graph.HasField("name") is False and not proto.graph.node and not proto.graph.output:
        raise PosexportError(f"{path} has an empty graph: no nodes and no outputs; give an .onnx file of a model")
    _check_functions(path, proto)
    _check_names(path, proto)
    for tensor in _tensors(proto):
        check_tensor(tensor, path)
    opsets = {"" if opset.domain == "ai.onnx" else opset.domain: opset.version for opset in proto.opset_import}
    for domain, version in opsets.items():
        if not 0 < version < _OPSETS:
            raise PosexportError(f"{path} imports version {version} of the operators {domain!r}; export it again")
    for graph in _graphs(proto):
        of_function = {} if isinstance(graph, type(proto.graph)) else {o.domain: o.version for o in graph.opset_import}
        check_nodes(graph.node, {**opsets, **of_function}, path)
    try:
        model = ir.serde.deserialize_model(proto)
        _resolve(model, path)
        if model.functions:
            InlinePass()(model)
    except Exception as err:  # onnx_ir has no base class for what it raises
        reason = str(err.__cause__ or err).splitlines()[0]
        raise PosexportError(f"{path} cannot be read as an ONNX graph: {reason}; export it again") from err
    _check_references(model, path)
    return model


def _check_references(model: ir.Model, path: Path) -> None:
    """Raises PosexportError for a node outside functions whose attribute refers to a function's."""
    for node in model.graph.all_nodes():
        if name := next((name for name, attribute in node.attributes.items() if attribute.is_ref()), None):
            raise PosexportError(
                f"{path}: {name} of node {node.name or node.op_type!r} refers to an attribute of a function, and the "
                "node is in none; export it again"
            )


def _resolve(model: ir.Model, path: Path) -> None:
    """Give tensors on disk the path that was checked.

    onnx_ir's check of a base directory refuses links of a Hugging Face cache, and files with several names, as
    installers of packages make them.
    """

    def resolved(tensor: Any) -> Any:
        if not isinstance(tensor, ir.ExternalTensor):
            return tensor
        where = (path.parent / tensor.location).resolve()
        return ir.ExternalTensor(
            where, tensor.offset, tensor.length, tensor.dtype, shape=tensor.shape, name=tensor.name or ""
        )

    graphs = [model.graph, *(function.graph for function in model.functions.values())]
    for graph in [each for outer in graphs for each in with_bodies(outer)]:
        for value in graph.initializers.values():
            value.const_value = resolved(value.const_value)
        for node in graph:
            for name, attribute in list(node.attributes.items()):
                if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
                    node.attributes[name] = ir.AttrTensor(name, resolved(attribute.as_tensor()))


def check_tensor(tensor: "onnx.TensorProto", path: Path) -> None:
    """Raises PosexportError where a tensor's sizes and its bytes do not belong together, or its file is not its own."""
    where = f"{path.name}: tensor {tensor.name!r}"
    if any(size < 0 for size in tensor.dims):
        raise PosexportError(f"{where} has a negative size in {list(tensor.dims)}; export the model again")
    expected = _bytes(tensor)
    if tensor.external_data or tensor.data_location == tensor.EXTERNAL:
        _check_external(tensor, where, expected, path)
    elif tensor.HasField("raw_data") and expected is not None and len(tensor.raw_data) != expected:
        raise PosexportError(
            f"{where} of shape {list(tensor.dims)} needs {expected} bytes, got {len(tensor.raw_data)}; "
            "download or export the model again"
        )
    elif not tensor.HasField("raw_data"):
        _check_elements(tensor, where)


def _check_elements(tensor: "onnx.TensorProto", where: str) -> None:
    """Raises PosexportError where a tensor's elements are listed and are not as many as its shape says."""
    import onnx

    try:
        field = onnx.helper.tensor_dtype_to_field(tensor.data_type)
    except KeyError:
        raise PosexportError(f"{where} is of no known type ({tensor.data_type}); export the model again") from None
    lists = ("float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data")
    if wrong := [other for other in lists if other != field and len(getattr(tensor, other))]:
        kind = onnx.TensorProto.DataType.Name(tensor.data_type)
        raise PosexportError(f"{where} is of type {kind} and has its elements in {wrong[0]}; export the model again")
    if field == "int32_data" and ir.DataType(tensor.data_type).bitwidth < 8:
        return  # several elements in one, which exporters count in two ways
    parts = 2 if onnx.TensorProto.DataType.Name(tensor.data_type).startswith("COMPLEX") else 1
    expected, got = math.prod(tensor.dims) * parts, len(getattr(tensor, field))
    if expected != got:
        raise PosexportError(
            f"{where} of shape {list(tensor.dims)} needs {expected} elements, got {got}; download or export the model "
            "again"
        )


def _check_external(tensor: "onnx.TensorProto", where: str, expected: int | None, path: Path) -> None:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    # protobuf's parser returns what is no text as bytes
    path_of = Path("/" if not location or isinstance(location, bytes) or "\0" in location else location)
    if path_of.is_absolute() or ".." in path_of.parts:
        raise PosexportError(
            f"{where} has its data in {location!r}, which is not a file in the model's folder; do not use this model"
        )
    try:
        # a link could lead to any file of this machine, whose bytes a later step would copy
        target = path if location == path.name else locate(path.parent, location)
    except PosexportError as err:
        raise PosexportError(f"{where} has its data in {location!r}: {err}") from err
    try:
        offset, length = int(entries.get("offset") or 0), int(entries.get("length") or -1)
    except ValueError:
        offset, length = -1, -1
    size = target.stat().st_size
    length = (size - offset if expected is None else expected) if length == -1 and offset >= 0 else length
    if offset < 0 or length < 0 or offset + length > size:
        raise PosexportError(
            f"{where} needs bytes {entries.get('offset', 0)} to {offset + length} of {location!r}, which has {size}; "
            "download it again"
        )
    if expected is not None and length != expected:
        raise PosexportError(
            f"{where} of shape {list(tensor.dims)} needs {expected} bytes, got {length} in {location!r}; "
            "download or export the model again"
        )


def _bytes(tensor: "onnx.TensorProto") -> int | None:
    """The size of a tensor's data; None for strings and for unknown types."""
    try:
        bits: int = ir.DataType(tensor.data_type).bitwidth
    except (ValueError, TypeError):
        return None
    elements: int = math.prod(tensor.dims)
    return -(-elements * bits // 8)


def _check_names(path: Path, proto: "onnx.ModelProto") -> None:
    """Raises PosexportError for a name that is no text: protobuf's parser returns it as bytes."""
    for graph in _graphs(proto):
        names: list[str | bytes] = [graph.name]
        names += [value if isinstance(value, str | bytes) else value.name for value in (*graph.input, *graph.output)]
        if isinstance(graph, type(proto.graph)):
            names += [item.name for item in (*graph.initializer, *graph.value_info)]
        for node in graph.node:
            names += [node.name, node.op_type, node.domain, *node.input, *node.output]
            names += [attribute.name for attribute in node.attribute]
        if wrong := next((name for name in names if isinstance(name, bytes)), None):
            raise PosexportError(f"{path} has the name {wrong!r}, which is not UTF-8; download or export it again")


def _graphs(proto: "onnx.ModelProto") -> "Iterator[onnx.GraphProto | onnx.FunctionProto]":
    """The graph, the functions, and the bodies of their nodes."""
    waiting: list[onnx.GraphProto | onnx.FunctionProto] = [proto.graph, *proto.functions]
    while waiting:
        yield (graph := waiting.pop())
        for node in graph.node:
            for attribute in node.attribute:
                waiting += [attribute.g] if attribute.HasField("g") else []
                waiting += attribute.graphs


def _tensors(proto: "onnx.ModelProto") -> "Iterator[onnx.TensorProto]":
    """All tensors of a model: initializers and attributes."""
    for graph in _graphs(proto):
        if isinstance(graph, type(proto.graph)):
            yield from graph.initializer
            for sparse in graph.sparse_initializer:
                yield from (sparse.values, sparse.indices)
        for node in graph.node:
            for attribute in node.attribute:
                yield from [attribute.t] if attribute.HasField("t") else []
                yield from attribute.tensors


_Key = tuple[str, str, str]


def _check_functions(path: Path, proto: "onnx.ModelProto") -> None:
    """Raises PosexportError where functions call themselves, or expand to more nodes than `MAX_NODES`."""
    functions = {(function.domain, function.name, function.overload): function for function in proto.functions}
    sizes: dict[_Key, int] = {}

    def size(nodes: "Iterable[onnx.NodeProto]", calling: tuple[_Key, ...]) -> int:
        """How many nodes these are once the functions that they call are inlined."""
        if len(calling) > _CALLS:
            raise PosexportError(f"{path}: functions call each other more than {_CALLS} deep; do not use this model")
        total = 0
        for key, number in Counter((node.domain, node.op_type, node.overload) for node in nodes).items():
            if key in calling:
                raise PosexportError(f"{path}: function {key[1]} calls itself; do not use this model")
            if key in functions and key not in sizes:
                sizes[key] = size(_with_bodies(functions[key].node), (*calling, key))
            total += number * sizes.get(key, 1)
        if total > MAX_NODES:
            raise PosexportError(f"{path} has more than {MAX_NODES} nodes once functions are inlined; do not use it")
        return total

    size(_with_bodies(proto.graph.node), ())


def _with_bodies(nodes: "Iterable[onnx.NodeProto]") -> "Iterator[onnx.NodeProto]":
    waiting = list(nodes)
    while waiting:
        yield (node := waiting.pop())
        for attribute in node.attribute:
            for body in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
                waiting += body.node
