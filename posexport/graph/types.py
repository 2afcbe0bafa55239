"""The element types of all values of a graph, and types and shapes of one node's outputs by ONNX's inference.

ONNX's inference stops at operators of com.microsoft. Here an output gets its type by the operator's schema; without a
schema, it gets the type of the first floating-point input.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache

import numpy as np
import onnx
import onnx.defs
import onnx_ir as ir
from onnx.shape_inference import InferenceError, infer_node_outputs

from posexport.base.spec import DOMAIN
from posexport.graph.dataflow import Propagation
from posexport.graph.queries import bodies, producer

#: operators with an attribute for the type of the first output, and its default
_BY_ATTRIBUTE = {
    "Cast": ("to", None),
    "EyeLike": ("dtype", None),
    "RandomNormal": ("dtype", ir.DataType.FLOAT),
    "RandomUniform": ("dtype", ir.DataType.FLOAT),
    "RandomNormalLike": ("dtype", None),
    "RandomUniformLike": ("dtype", None),
    "Bernoulli": ("dtype", None),
    "Multinomial": ("dtype", ir.DataType.INT32),
    "DequantizeLinear": ("output_dtype", None),
    "BlackmanWindow": ("output_datatype", ir.DataType.FLOAT),
    "HammingWindow": ("output_datatype", ir.DataType.FLOAT),
    "HannWindow": ("output_datatype", ir.DataType.FLOAT),
}
#: name prefixes of operators without a schema that return integers
_QUANTIZING = ("Quantize", "QLinear", "DynamicQuantizeLinear")

#: returns the type of a value, or None if it is unknown
TypeOf = Callable[[ir.Value], "ir.DataType | None"]


class Types(Propagation):
    """Sets the element type of every value. A call of a function counts as an operator without a schema."""

    def __init__(self, opsets: Mapping[str, int]) -> None:
        self._opsets = opsets

    def of(self, value: ir.Value) -> "ir.DataType | None":
        return value.dtype

    def put(self, value: ir.Value, dtype: ir.DataType) -> None:
        value.dtype = dtype

    def constant(self, value: ir.Value) -> None:
        self.put(value, ir.DataType.INT64 if value.const_value is None else value.const_value.dtype)

    def join(self, value: ir.Value, candidates: Sequence[ir.Value]) -> None:
        if known := [dtype for candidate in candidates if (dtype := self.of(candidate)) is not None]:
            self.put(value, known[0])

    def node(self, node: ir.Node) -> None:
        for value, dtype in zip(node.outputs, output_types(node, self.of, self._opsets), strict=True):
            if dtype is not None:
                self.put(value, dtype)


def infer_types(graph: ir.Graph, opsets: Mapping[str, int]) -> list[ir.Value]:
    """Infer the type of every node output of ``graph`` and its bodies; return the outputs of unknown type.

    For graphs without functions. The types of inputs must be set; other types in the model are overwritten.
    """
    Types(opsets).run(graph)
    operators = [node for node in graph.all_nodes() if not bodies(node)]
    return [value for node in operators for value in node.outputs if value.dtype is None]


def output_types(node: ir.Node, type_of: TypeOf, opsets: Mapping[str, int]) -> "list[ir.DataType | None]":
    """The type of every output of a node without bodies that calls no function; None if it is unknown."""
    return [_output_type(node, index, type_of, opsets) for index in range(len(node.outputs))]


def constant_type(node: ir.Node) -> ir.DataType:
    """The element type of a Constant's output."""
    (name, attribute), *_ = node.attributes.items()
    if name == "value":
        return attribute.as_tensor().dtype
    return {"value_float": ir.DataType.FLOAT, "value_floats": ir.DataType.FLOAT}.get(
        name, ir.DataType.STRING if "string" in name else ir.DataType.INT64
    )


@cache
def schema_of(op_type: str, domain: str, opset: int) -> "onnx.defs.OpSchema | None":
    """ONNX's schema of an operator, if there is one."""
    try:
        return onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
        return None


def allowed_types(schema: "onnx.defs.OpSchema", formal: "onnx.defs.OpSchema.FormalParameter") -> list[str]:
    """The types that an operator allows for a parameter, for example ``tensor(float)``."""
    constraints = {constraint.type_param_str: constraint.allowed_type_strs for constraint in schema.type_constraints}
    return list(constraints.get(formal.type_str, [formal.type_str]))


def _output_type(node: ir.Node, index: int, type_of: TypeOf, opsets: Mapping[str, int]) -> "ir.DataType | None":
    """The type of one output; None if it is unknown."""
    if node.op_type == "Constant" and not node.domain:
        return constant_type(node)
    if node.op_type == "ConstantOfShape" and not node.domain:
        value = node.attributes.get("value")
        return ir.DataType.FLOAT if value is None else value.as_tensor().dtype
    attribute, default = _BY_ATTRIBUTE.get(node.op_type, ("", None))
    if attribute and index == 0:
        number = node.attributes.get_int(attribute, 0)
        if number:
            return ir.DataType(number)
        if default is not None:
            return default
        if node.op_type == "DequantizeLinear":  # since opset 23 its schema has no input of the output's type
            return _first_float(node, type_of)
    version = node.version if node.version is not None else opsets.get(node.domain, 1)
    schema = schema_of(node.op_type, node.domain, version)
    return _first_float(node, type_of) if schema is None else _by_schema(node, index, schema, type_of)


def _by_schema(node: ir.Node, index: int, schema: "onnx.defs.OpSchema", type_of: TypeOf) -> "ir.DataType | None":
    output = schema.outputs[min(index, len(schema.outputs) - 1)]  # the last one may be variadic
    if len(only := allowed_types(schema, output)) == 1:
        return _named(only[0])
    for position, value in enumerate(node.inputs):
        formal = schema.inputs[min(position, len(schema.inputs) - 1)]
        if value is not None and formal.type_str == output.type_str and (dtype := type_of(value)) is not None:
            return dtype
    # statistics of a normalisation have the type that it computes in
    return ir.DataType(node.attributes.get_int("stash_type", 1) or 1) if index else None


def _named(text: str) -> "ir.DataType | None":
    """The element type of ``tensor(int64)``; None of other types."""
    return getattr(ir.DataType, text.removeprefix("tensor(").removesuffix(")").upper(), None)


def _first_float(node: ir.Node, type_of: TypeOf) -> "ir.DataType | None":
    if node.op_type.startswith(_QUANTIZING):
        return ir.DataType.UINT8
    dtypes = (type_of(value) for value in node.inputs if value is not None)
    return next((dtype for dtype in dtypes if dtype is not None and dtype.is_floating_point()), None)


#: elements of the largest constant that shapes are read from
_MOST = 16


def infer(node: ir.Node, opset: int) -> None:
    """Set the type and the shape of each output, as far as the inputs decide them; values must have names.

    Nodes with bodies and calls of functions are left as they are. Operators without a schema, for example
    of com.microsoft, get a type and no shape.
    """
    if bodies(node) or node.domain == DOMAIN:
        return
    schema = schema_of(node.op_type, node.domain, opset)
    inputs = [value for value in node.inputs if value is not None]
    if schema is not None and all(value.type is not None for value in inputs):
        try:
            inferred = infer_node_outputs(
                schema,
                ir.serde.serialize_node(node),
                {value.name or "": ir.serde.serialize_value(value).type for value in inputs},
                {value.name or "": tensor for value in inputs if (tensor := _constant(value)) is not None},
                opset_imports=[onnx.helper.make_opsetid("", opset)],
            )
        except InferenceError:  # sizes stated by a trace may contradict each other
            inferred = {}
        for value in node.outputs:
            if value.name in inferred:
                value.type = ir.serde.deserialize_type_proto_for_type(inferred[value.name])
                value.shape = ir.serde.deserialize_type_proto_for_shape(inferred[value.name])
    for value, dtype in zip(node.outputs, output_types(node, lambda x: x.dtype, {"": opset}), strict=True):
        if value.type is None and dtype is not None:
            value.type = ir.TensorType(dtype)


def _constant(value: ir.Value) -> "onnx.TensorProto | None":
    """The tensor of a small constant, for shapes that depend on it; the default of an input is no constant."""
    tensor = None if value.is_graph_input() else value.const_value
    if (node := producer(value, "Constant")) is not None:
        (attribute,) = node.attributes.values()
        if attribute.is_ref():
            return None
        known = attribute.type == ir.AttributeType.TENSOR
        tensor = attribute.as_tensor() if known else ir.tensor(attribute.value)
    if tensor is None or tensor.size > _MOST:
        return None
    return onnx.numpy_helper.from_array(np.asarray(tensor.numpy()))
