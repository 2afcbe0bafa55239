"""The element types of what a node computes, from those of its operands: function bodies declare none."""

from collections.abc import Mapping, Sequence
from functools import cache

import onnx.defs
import onnx_ir as ir

Types = Mapping[ir.Value, ir.DataType]

_CONSTANTS = {
    "value_float": ir.DataType.FLOAT,
    "value_floats": ir.DataType.FLOAT,
    "value_int": ir.DataType.INT64,
    "value_ints": ir.DataType.INT64,
    "value_string": ir.DataType.STRING,
    "value_strings": ir.DataType.STRING,
}


def output_types(node: ir.Node, types: Types, opset: int) -> list[ir.DataType | None]:
    """The element type of every output of ``node``, no call and no control flow; None where it cannot be known."""
    if node.domain == "" and node.op_type == "Constant":
        return [_of_constant(node)]
    if node.domain == "" and node.op_type == "ConstantOfShape":
        value = node.attributes.get("value")
        return [ir.DataType.FLOAT if value is None else value.as_tensor().dtype]
    if node.domain == "" and node.op_type == "CastLike":
        return [_type(node.inputs[1], types)]
    to = node.attributes.get("to") or node.attributes.get("dtype")
    if node.domain == "" and to is not None:
        return [ir.DataType(to.as_int())]
    schema = schema_of(node.op_type, node.domain, opset)
    if schema is None:  # ONNX Runtime's own operators compute in the type of their first operand
        return [_type(node.inputs[0], types)] * len(node.outputs)
    return [_by_schema(node, formal, types, opset) for formal in _formals(schema.outputs, len(node.outputs))]


@cache
def schema_of(op_type: str, domain: str, opset: int) -> "onnx.defs.OpSchema | None":
    """ONNX's own account of an operator; None where it has none."""
    try:
        return onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
        return None


def accepts(op_type: str, domain: str, opset: int, dtype: str) -> bool:
    """Whether the first operand may have ``dtype`` (ONNX's name); True for what ONNX does not know."""
    schema = schema_of(op_type, domain, opset)
    if schema is None or not schema.inputs:
        return True
    allowed = {each.type_param_str: each.allowed_type_strs for each in schema.type_constraints}
    return any(
        f"tensor({dtype})" in allowed.get(formal.type_str, [formal.type_str])
        for formal in [*schema.inputs, *schema.outputs][: 1 if op_type not in _CONDITIONED else None]
    )


#: the first operand of these is a condition or a shape
_CONDITIONED = ("Where", "ConstantOfShape", "OneHot")


def _formals(formals: "Sequence[onnx.defs.OpSchema.FormalParameter]", count: int) -> list[object]:
    """A formal parameter for each of ``count`` actual ones: the last may stand for several."""
    return [formals[min(index, len(formals) - 1)] for index in range(count)]


def _by_schema(node: ir.Node, output: object, types: Types, opset: int) -> ir.DataType | None:
    text = output.type_str  # type: ignore[attr-defined]
    if text.startswith("tensor("):
        return _DTYPES.get(text[len("tensor(") : -1])
    schema = schema_of(node.op_type, node.domain, opset)
    assert schema is not None
    for formal, value in zip(_formals(schema.inputs, len(node.inputs)), node.inputs, strict=True):
        if formal.type_str == text and value is not None:  # type: ignore[attr-defined]
            return _type(value, types)
    return None


def _type(value: ir.Value | None, types: Types) -> ir.DataType | None:
    return None if value is None else types.get(value)


def _of_constant(node: ir.Node) -> ir.DataType | None:
    for name, attribute in node.attributes.items():
        if name in _CONSTANTS:
            return _CONSTANTS[name]
        if name == "value":
            return attribute.as_tensor().dtype
    return None


#: by the names in ONNX's schemas
_DTYPES = {
    "float": ir.DataType.FLOAT,
    "float16": ir.DataType.FLOAT16,
    "bfloat16": ir.DataType.BFLOAT16,
    "double": ir.DataType.DOUBLE,
    "int64": ir.DataType.INT64,
    "int32": ir.DataType.INT32,
    "uint8": ir.DataType.UINT8,
    "int8": ir.DataType.INT8,
    "bool": ir.DataType.BOOL,
}
