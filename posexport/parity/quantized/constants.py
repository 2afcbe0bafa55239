"""Constants of a graph, also behind the operators that only move them."""

from collections.abc import Iterable, Iterator

import numpy as np
import onnx_ir as ir

from posexport.parity.quantized.records import Array

#: types of quantized numbers
_WHOLE = {ir.DataType.INT4, ir.DataType.UINT4, ir.DataType.INT8, ir.DataType.UINT8}


def constant(value: ir.Value | None, known: set[ir.Value] | None = None) -> Array | None:
    """The numbers of ``value``; None where they are not constant. ``known`` gets what holds them."""
    if value is None or value.is_graph_input():
        return None
    node = value.producer()
    if node is None or node.op_type == "Constant":
        tensor = value.const_value
        if tensor is None and node is not None and "value" in node.attributes:
            tensor = node.attributes["value"].as_tensor()
        if tensor is None:
            return None
        if known is not None:
            known.add(value)
        return np.asarray(tensor.numpy())
    if node.op_type not in ("Transpose", "Reshape", "Identity", "Squeeze", "Unsqueeze"):
        return None
    before = constant(node.inputs[0], known)
    if before is None:
        return None
    if node.op_type == "Transpose":
        perm = node.attributes.get("perm")
        return before.transpose(None if perm is None else list(perm.as_ints()))
    if node.op_type == "Reshape":
        shape = constant(node.inputs[1])
        return None if shape is None else before.reshape(shape.tolist())
    return before


def array_of(node: ir.Node, place: int) -> Array | None:
    """The constant that is a node's input there."""
    return constant(node.inputs[place]) if place < len(node.inputs) else None


def tables(nodes: Iterable[ir.Node], model: ir.Model) -> Iterator[ir.Value]:
    """All constants of two axes or more with quantized numbers."""
    for value in model.graph.initializers.values():
        if value.const_value is not None and value.const_value.dtype in _WHOLE and len(value.const_value.shape) > 1:
            yield value
    for node in nodes:
        if node.op_type == "Constant" and "value" in node.attributes:
            tensor = node.attributes["value"].as_tensor()
            if tensor.dtype in _WHOLE and len(tensor.shape) > 1:
                yield node.outputs[0]


def tensor_name(value: ir.Value | None) -> str:
    """Of the tensor behind ``value``."""
    while value is not None and value.const_value is None and value.producer() is not None:
        producer = value.producer()
        assert producer is not None
        if not producer.inputs:
            break
        value = producer.inputs[0]
    return "" if value is None else str(value.name)
