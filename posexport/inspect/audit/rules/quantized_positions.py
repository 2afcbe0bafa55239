"""PX309: rotary angles, bias tables and position tables in 8 bits."""

from collections.abc import Iterator

import onnx_ir as ir

from posexport.graph.queries import producer
from posexport.inspect.audit.analyses.attention import Attention
from posexport.inspect.audit.analyses.position_values import origins, steps
from posexport.inspect.audit.analyses.positions import lookups
from posexport.inspect.audit.analyses.scalars import MOVES
from posexport.inspect.audit.rule import Place, Rule, name_of
from posexport.inspect.audit.subject import Subject

_BYTES = (ir.DataType.INT8, ir.DataType.UINT8)


def _check(subject: Subject) -> Iterator[Place]:
    yield from _angles(subject)
    biases = list(_bias_tables(subject))
    for attention, step, table in biases:
        yield Place(f"the attention bias of {name_of(attention.node)!r} has rows of {table.name!r} in 8 bits", [step])
    tables = [table for _, _, table in biases]
    for lookup in lookups(subject.nodes, subject.roles, subject.sizes):
        if lookup.table.dtype in _BYTES and lookup.table not in tables:
            yield Place(
                f"the position table {lookup.table.name!r}, {lookup.rows} rows, is in 8 bits",
                [lookup.node],
                severity="note",
            )


def _angles(subject: Subject) -> Iterator[Place]:
    """Angles that are computed and then quantized."""
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


def _bias_tables(subject: Subject) -> Iterator[tuple[Attention, ir.Node, ir.Value]]:
    """Tables with attention biases: the first attention that reads each, and the DequantizeLinear."""
    seen: set[ir.Value] = set()
    for attention in subject.attentions:
        for added in attention.added:
            for value in steps(added):
                step = producer(value, "DequantizeLinear")
                table = None if step is None else _table(step)
                if step is not None and table is not None and table not in seen:
                    seen.add(table)
                    yield attention, step, table


def _table(step: ir.Node) -> ir.Value | None:
    """The 8-bit table with two axes that a DequantizeLinear reads, itself or rows of it."""
    value = step.inputs[0]
    while value is not None and (node := value.producer()) is not None and node.op_type in MOVES:
        value = node.inputs[0]
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    return value if tensor is not None and tensor.dtype in _BYTES and len(tensor.shape) > 1 else None


RULE = Rule(
    code="PX309",
    name="quantized-positions",
    severity="warning",
    finds="rotary angles, relative position biases or position tables in 8 bits",
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
