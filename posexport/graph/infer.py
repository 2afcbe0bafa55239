"""Types and shapes of the outputs of one node, by ONNX's inference."""

import numpy as np
import onnx
import onnx_ir as ir
from onnx.shape_inference import InferenceError, infer_node_outputs

from posexport.graph.bodies import bodies
from posexport.graph.queries import producer
from posexport.graph.types import output_types, schema_of
from posexport.spec import DOMAIN

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
