"""PX301: positions, distances and RoPE angles in float16 or bfloat16."""

from collections.abc import Iterator

import onnx_ir as ir

from posexport.inspect.audit.analyses.position_values import largest, origins, steps
from posexport.inspect.audit.analyses.positions import lookups
from posexport.inspect.audit.rule import Place, Rule, name_of
from posexport.inspect.audit.subject import Subject

#: the largest integer up to which a type has all integers
_EXACT = {ir.DataType.FLOAT16: ("float16", 2048), ir.DataType.BFLOAT16: ("bfloat16", 256)}


def _check(subject: Subject) -> Iterator[Place]:
    limits = [lookup.rows for lookup in lookups(subject.nodes, subject.roles, subject.sizes)]
    shortest = min(limits, default=None)

    def inexact(value: ir.Value | None, *, angles: bool) -> bool:
        """Whether the value has positions beyond the integers of its type."""
        if value is None or value.dtype not in _EXACT:
            return False
        exact = _EXACT[value.dtype][1]
        reached = origins(value, subject.roles, angles=angles)
        fits = [most is not None and most <= exact + 1 for most in (largest(v, subject.sizes) for v in reached)]
        return bool(reached) and not all(fits) and (shortest is None or shortest > exact + 1)

    in_angles: set[ir.Value] = set()
    for node in subject.nodes:
        angles = node.inputs[0] if node.op_type in ("Cos", "Sin") and not node.domain else None
        # cosine and sine of the same angles are one place
        if angles is not None and angles not in in_angles and inexact(angles, angles=True):
            in_angles.update(steps(angles, angles=True))
            yield Place(
                f"{node.op_type} {name_of(node)!r} reads angles in {_text(angles)}: they are rounded, by 1 radian and "
                "more from there on",
                [node],
                severity="error",
            )
    for node in subject.nodes:
        result = node.outputs[0]
        if node.op_type not in ("Cast", "Range") or node.domain or result in in_angles or node.inputs[0] is None:
            continue
        if (node.op_type == "Range" or node.inputs[0].dtype not in _EXACT) and inexact(result, angles=False):
            yield Place(
                f"{name_of(node)!r} has positions or distances in {_text(result)}: others are rounded",
                [node],
                # a bundle rounds where the model's code does (Falcon's ALiBi), and its proof has shown that
                severity="note" if subject.by_posexport else None,
            )


def _text(value: ir.Value) -> str:
    name, exact = _EXACT[value.dtype or ir.DataType.FLOAT16]
    return f"{name}, which has all integers up to {exact} only"


RULE = Rule(
    code="PX301",
    name="half-positions",
    severity="warning",
    finds="positions, distances or rotary angles are computed in float16 or bfloat16",
    why="Above 2,048 (bfloat16: 256) neighbouring positions become the same number: rotations and biases are those of "
    "other positions, and long texts degrade without an error.",
    remedy="Compute positions and angles in float32 and cast cosines and sines: keep Range, Mul, MatMul, Cos and Sin "
    "of positions from the converter (node_block_list); posexport convert --precision fp16 keeps them in float32.",
    check=_check,
    bad="""
        <ir_version: 8, opset_import: ["": 18]>
        rounded (float16[B, T, 4] x) => (float16[T, 2] cosines)
        <int64 zero = {0}, int64 one = {1}, float[1, 2] frequencies32 = {1.0, 0.01}, int64[1] last = {1}>
        {
            length = Shape <start = 1, end = 2> (x)
            end = Squeeze (length)
            positions = Range (zero, end, one)
            half = Cast <to = 10> (positions)
            column = Unsqueeze (half, last)
            frequencies = Cast <to = 10> (frequencies32)
            angles = Mul (column, frequencies)
            cosines = Cos (angles)
        }
    """,
    good="""
        <ir_version: 8, opset_import: ["": 18]>
        exact (float16[B, T, 4] x) => (float16[T, 2] cosines)
        <int64 zero = {0}, int64 one = {1}, float[1, 2] frequencies = {1.0, 0.01}, int64[1] last = {1}>
        {
            length = Shape <start = 1, end = 2> (x)
            end = Squeeze (length)
            positions = Range (zero, end, one)
            single = Cast <to = 1> (positions)
            column = Unsqueeze (single, last)
            angles = Mul (column, frequencies)
            wide = Cos (angles)
            cosines = Cast <to = 10> (wide)
        }
    """,
)
