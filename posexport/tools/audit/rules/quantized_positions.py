"""PX309: angles, position tables and bias tables in 8 bits."""

from collections.abc import Iterator

import onnx_ir as ir

from posexport.graph.queries import producer
from posexport.tools.audit.analyses.position_values import origins, steps
from posexport.tools.audit.analyses.scalars import MOVES
from posexport.tools.audit.rule import Place, Rule, name_of
from posexport.tools.audit.subject import Subject

_BYTES = (ir.DataType.INT8, ir.DataType.UINT8)


def _check(subject: Subject) -> Iterator[Place]:
    seen: set[ir.Node] = set()
    for node in subject.nodes:
        angles = node.inputs[0] if node.op_type in ("Cos", "Sin") and not node.domain else None
        if angles is None or not origins(angles, subject.roles, angles=True):
            continue
        for value in steps(angles, angles=True):
            step = producer(value, "DequantizeLinear")
            quantized = None if step is None else step.inputs[0]
            if step is None or quantized is None or step in seen:
                continue
            if quantized.dtype in _BYTES and ir.convenience.get_const_tensor(quantized) is None:
                seen.add(step)
                yield Place(
                    f"angles of {name_of(node)!r} are quantized to 8 bits: of all positions 256 angles are left",
                    [step, node],
                    severity="error",
                )
    for attention in subject.attentions:
        for added in attention.added:
            step = _dequantized(added)
            table = None if step is None else _table(step)
            if step is not None and table is not None and step not in seen:
                seen.add(step)
                yield Place(
                    f"the attention bias of {name_of(attention.node)!r} has rows of {table.name!r} in 8 bits", [step]
                )


def _dequantized(value: ir.Value) -> ir.Node | None:
    """The DequantizeLinear that a bias is moved and gathered from."""
    node = value.producer()
    while node is not None and not node.domain and node.op_type in (*MOVES, "Cast") and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    return node if node is not None and node.op_type == "DequantizeLinear" else None


def _table(step: ir.Node) -> ir.Value | None:
    """The 8-bit table with two axes that a DequantizeLinear reads, itself or rows of it."""
    value = step.inputs[0]
    while (node := producer(value, "Gather")) is not None:
        value = node.inputs[0]
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    return value if tensor is not None and tensor.dtype in _BYTES and len(tensor.shape) > 1 else None


RULE = Rule(
    code="PX309",
    name="quantized-positions",
    severity="warning",
    finds="rotary angles or relative position biases in 8 bits",
    why="Biases of T5, Swin and others reach 10 to 20: a step of 8 bits is 0.1 of a score, for every layer. Angles of "
    "long texts have a step of several radians.",
    remedy="Leave what belongs to positions out of the quantization (nodes_to_exclude, or op_types_to_quantize with "
    "MatMul alone); posexport convert --precision int8 does.",
    check=_check,
    bad="""
        <ir_version: 8, opset_import: ["": 18]>
        coarse (float[B, 2, T, D] q, float[B, 2, D, T] k, float[B, 2, T, D] v, int64[T, T] buckets)
            => (float[B, 2, T, D] y)
        <int8[3, 2] table = {1, 2, 3, 4, 5, 6}, float scale = {0.1}>
        {
            rows = Gather (table, buckets)
            values = DequantizeLinear (rows, scale)
            bias = Transpose <perm = [2, 0, 1]> (values)
            products = MatMul (q, k)
            scores = Add (products, bias)
            p = Softmax <axis = -1> (scores)
            y = MatMul (p, v)
        }
    """,
    good="""
        <ir_version: 8, opset_import: ["": 18]>
        fine (float[B, 2, T, D] q, float[B, 2, D, T] k, float[B, 2, T, D] v, int64[T, T] buckets)
            => (float[B, 2, T, D] y)
        <float[3, 2] table = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6}>
        {
            rows = Gather (table, buckets)
            bias = Transpose <perm = [2, 0, 1]> (rows)
            products = MatMul (q, k)
            scores = Add (products, bias)
            p = Softmax <axis = -1> (scores)
            y = MatMul (p, v)
        }
    """,
)
