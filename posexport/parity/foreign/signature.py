"""What a graph declares: its inputs and outputs with types and shapes, and whether posexport made it.

Imports no torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from posexport.errors import PosexportError

#: ONNX's element types by number, as ONNX Runtime writes them; only those that NumPy has
_TYPES = {1: "float", 6: "int32", 7: "int64", 9: "bool", 10: "float16", 11: "double"}


@dataclass(frozen=True)
class Declared:
    """One input or output. ``shape``: an int is a fixed size, a text a free one; None where the rank is open.

    ``element``: one of `_TYPES`, or None for any other.
    """

    name: str
    element: str | None
    shape: tuple[int | str, ...] | None

    def __str__(self) -> str:
        size = "any shape" if self.shape is None else f"[{', '.join(map(str, self.shape))}]"
        return f"{self.name} {size}"


@dataclass(frozen=True)
class Signature:
    """``own``: posexport's metadata is in the graph. ``optional``: inputs that have a value when they are left out."""

    inputs: Mapping[str, Declared]
    optional: Mapping[str, Declared]
    outputs: Mapping[str, Declared]
    own: bool


def signature(model: Path) -> Signature:
    """Read from the file; PosexportError where it is no ONNX model."""
    import onnx

    try:
        proto = onnx.load(str(model), load_external_data=False)
    except Exception as err:  # protobuf's parser raises its own kinds
        raise PosexportError(f"{model} is not an ONNX model: {err}") from err
    graph = proto.graph
    held = {tensor.name for tensor in graph.initializer}
    inputs = [_declared(value) for value in graph.input]
    return Signature(
        {declared.name: declared for declared in inputs if declared.name not in held},
        {declared.name: declared for declared in inputs if declared.name in held},
        {declared.name: declared for declared in map(_declared, graph.output)},
        any(entry.key.startswith("posexport.") for entry in proto.metadata_props),
    )


def _declared(value: "object") -> Declared:
    from onnx import ValueInfoProto

    assert isinstance(value, ValueInfoProto)
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return Declared(value.name, _TYPES.get(tensor.elem_type), None)
    shape = tuple(dim.dim_value if dim.HasField("dim_value") else dim.dim_param or "?" for dim in tensor.shape.dim)
    return Declared(value.name, _TYPES.get(tensor.elem_type), shape)
