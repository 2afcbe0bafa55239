"""PX310: element types that an operator's definition does not have, or two where it has one."""

from collections import defaultdict
from collections.abc import Iterator

import onnx.defs
import onnx_ir as ir

from posexport.inspect.audit.rule import Place, Rule
from posexport.inspect.audit.subject import Subject


def _check(subject: Subject) -> Iterator[Place]:
    opset = subject.opset()
    for node in subject.nodes:
        if (reason := _reason(node, opset)) is not None:
            yield Place(f"{node.op_type} takes {reason}: ONNX Runtime does not open the file", [node])


def _reason(node: ir.Node, opset: int) -> str | None:
    """What is wrong with the types of an operator of ONNX; None if nothing is, or a type is not known."""
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, "") if node.domain in ("", "ai.onnx") else None
    except onnx.defs.SchemaError:
        return None
    if schema is None or not schema.inputs:
        return None
    allowed = {each.type_param_str: set(each.allowed_type_strs) for each in schema.type_constraints}
    shared: dict[str, dict[ir.DataType, ir.Value]] = defaultdict(dict)
    for place, value in enumerate(node.inputs):
        formal = schema.inputs[min(place, len(schema.inputs) - 1)]
        if value is None or value.dtype is None or not isinstance(value.type, ir.TensorType):
            continue
        types = allowed.get(formal.type_str, {formal.type_str})
        if f"tensor({value.dtype.name.lower()})" not in types:
            return f"{_text(value)}, which its definition at opset {opset} does not have"
        if formal.type_str in allowed and formal.is_homogeneous:
            shared[formal.type_str].setdefault(value.dtype, value)
    two = next((values for values in shared.values() if len(values) > 1), None)
    return f"{' and '.join(map(_text, two.values()))}, which have to be of one type" if two else None


def _text(value: ir.Value) -> str:
    return f"{value.name!r} in {value.dtype.name.lower()}" if value.dtype is not None else repr(value.name)


RULE = Rule(
    code="PX310",
    name="unfit-types",
    severity="error",
    finds="an element type that the operator's definition does not have, or two where it has one",
    why="ONNX Runtime refuses the file when it is opened (Type Error). Converters to float16 leave these behind where "
    "they do not know a type, or keep a Cast to float32.",
    remedy="Convert again with shape inference (without disable_shape_infer), or with posexport convert --precision "
    "fp16, whose files are opened and proven before they are written.",
    check=_check,
    bad="""
        <ir_version: 8, opset_import: ["": 18]>
        mixed (float16[B, T, D] x, float16[D] scale) => (float16[B, T, D] y)
        {
            wide = Cast <to = 1> (scale)
            y = Mul (x, wide)
        }
    """,
    good="""
        <ir_version: 8, opset_import: ["": 18]>
        one (float16[B, T, D] x, float[D] scale) => (float16[B, T, D] y)
        {
            narrow = Cast <to = 10> (scale)
            y = Mul (x, narrow)
        }
    """,
)
