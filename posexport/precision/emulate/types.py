"""The element type of every value of a graph without functions, subgraphs included.

ONNX's own inference knows no operators of com.microsoft and stops at them. Here an operator's schema says which output
has the type of which input; an operator without a schema gives the type of its first floating-point input.
"""

from collections.abc import Iterator, Mapping, Sequence

import onnx.defs
import onnx_ir as ir

#: attributes that name the type of the first output, and that type where they are absent
_BY_ATTRIBUTE = {
    "Cast": ("to", None),
    "EyeLike": ("dtype", None),
    "RandomNormal": ("dtype", ir.DataType.FLOAT),
    "RandomUniform": ("dtype", ir.DataType.FLOAT),
    "RandomNormalLike": ("dtype", None),
    "RandomUniformLike": ("dtype", None),
    "Bernoulli": ("dtype", None),
    "DequantizeLinear": ("output_dtype", None),
    "BlackmanWindow": ("output_datatype", ir.DataType.FLOAT),
    "HammingWindow": ("output_datatype", ir.DataType.FLOAT),
    "HannWindow": ("output_datatype", ir.DataType.FLOAT),
}
#: where operators without a schema begin so, their outputs are integers
_QUANTIZING = ("Quantize", "QLinear", "DynamicQuantizeLinear")
_CONTROL_FLOW = ("If", "Loop", "Scan")


def settle(graph: ir.Graph, opsets: Mapping[str, int]) -> list[ir.Value]:
    """Set the type of every value that a node of ``graph`` or of a subgraph gives; the values whose type is unknown.

    Types of inputs and initializers must be there. Types of other values that the model states are not believed.
    """
    unknown: list[ir.Value] = []
    for value in graph.initializers.values():
        if value.const_value is not None:
            value.dtype = value.const_value.dtype
    for node in graph:
        if node.op_type in _CONTROL_FLOW and not node.domain:
            dtypes = _control_flow(node, opsets, unknown)
        else:
            dtypes = [_output_type(node, index, opsets) for index in range(len(node.outputs))]
        for value, dtype in zip(node.outputs, dtypes, strict=False):
            if dtype is not None:
                value.dtype = dtype
            elif value.dtype is None:
                unknown.append(value)
    return unknown


def bodies(node: ir.Node) -> Iterator[ir.Graph]:
    """The subgraphs of a node."""
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS:
            yield from attribute.as_graphs()


def _control_flow(node: ir.Node, opsets: Mapping[str, int], unknown: list[ir.Value]) -> Sequence["ir.DataType | None"]:
    """The types of the outputs of an If, a Loop or a Scan, after those in its bodies."""
    given = [None if value is None else value.dtype for value in node.inputs]
    for body in bodies(node):
        # a Loop's body gets the number of the iteration and the condition, then what is carried
        fed = given if node.op_type == "Scan" else [ir.DataType.INT64, ir.DataType.BOOL, *given[2:]]
        for value, dtype in zip(body.inputs, fed, strict=False):
            if dtype is not None:
                value.dtype = dtype
        unknown += settle(body, opsets)
    first = next(bodies(node))
    outputs = [value.dtype for value in first.outputs]
    return outputs[1:] if node.op_type == "Loop" else outputs


def _output_type(node: ir.Node, index: int, opsets: Mapping[str, int]) -> "ir.DataType | None":
    """The type of one output; None where neither a schema nor a convention says it."""
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
    schema = _schema(node, opsets)
    return _first_float(node) if schema is None else _by_schema(node, index, schema)


def constant_type(node: ir.Node) -> ir.DataType:
    """The type of what a Constant gives."""
    (name, attribute), *_ = node.attributes.items()
    if name == "value":
        return attribute.as_tensor().dtype
    return {"value_float": ir.DataType.FLOAT, "value_floats": ir.DataType.FLOAT}.get(
        name, ir.DataType.STRING if "string" in name else ir.DataType.INT64
    )


def _schema(node: ir.Node, opsets: Mapping[str, int]) -> "onnx.defs.OpSchema | None":
    version = node.version if node.version is not None else opsets.get(node.domain, 1)
    try:
        return onnx.defs.get_schema(node.op_type, version, node.domain)
    except onnx.defs.SchemaError:
        return None


def _by_schema(node: ir.Node, index: int, schema: "onnx.defs.OpSchema") -> "ir.DataType | None":
    name = _formal(schema.outputs, index).type_str
    allowed = {constraint.type_param_str: constraint.allowed_type_strs for constraint in schema.type_constraints}
    if len(only := allowed.get(name, [name])) == 1:
        return _named(only[0])
    for position, value in enumerate(node.inputs):
        if value is not None and value.dtype is not None and _formal(schema.inputs, position).type_str == name:
            return value.dtype
    # statistics of a normalisation have the type that it computes in
    return ir.DataType(node.attributes.get_int("stash_type", 1) or 1) if index else None


def _named(text: str) -> "ir.DataType | None":
    """The element type of ``tensor(int64)``; None of other types."""
    return getattr(ir.DataType, text.removeprefix("tensor(").removesuffix(")").upper(), None)


def _formal(
    formals: "Sequence[onnx.defs.OpSchema.FormalParameter]", index: int
) -> "onnx.defs.OpSchema.FormalParameter":
    """The parameter at a position; the last one may stand for several."""
    return formals[min(index, len(formals) - 1)]


def _first_float(node: ir.Node) -> "ir.DataType | None":
    if node.op_type.startswith(_QUANTIZING):
        return ir.DataType.UINT8
    given = (value.dtype for value in node.inputs if value is not None)
    return next((dtype for dtype in given if dtype is not None and dtype.is_floating_point()), None)
