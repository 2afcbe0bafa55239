"""PX308: an epsilon that became 0 in float16."""

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from posexport.inspect.audit.analyses.scalars import element
from posexport.inspect.audit.rule import Place, Rule
from posexport.inspect.audit.subject import Subject

#: readers of a variance with its epsilon, and of a length that is divided by
_READERS = {"Add": ("Sqrt", "Pow", "Reciprocal"), "Max": ("Div", "Expand"), "Clip": ("Div", "Expand")}
_REDUCTIONS = ("ReduceMean", "ReduceSum", "ReduceL2", "ReduceL1")


def _check(subject: Subject) -> Iterator[Place]:
    for node in subject.nodes:
        if node.op_type not in _READERS or node.domain or node.outputs[0].dtype != ir.DataType.FLOAT16:
            continue
        operands = [value for value in node.inputs[:2] if value is not None]
        reduction = next((step for value in operands if (step := _reduction(value)) is not None), None)
        readers = [user.op_type for user, _ in node.outputs[0].uses()]
        if reduction is None or not any(reader in _READERS[node.op_type] for reader in readers):
            continue
        epsilon = next((value for value in operands if element(value, lambda _: None) is not None), None)
        if epsilon is not None and _in_half(epsilon) == 0.0:
            yield Place(
                f"{node.op_type} {node.outputs[0].name!r} keeps a division from 0 by {epsilon.name!r}, which is 0 in "
                "float16",
                [node],
            )


def _reduction(value: ir.Value) -> ir.Node | None:
    node = value.producer()
    while node is not None and node.op_type in ("Cast", "Sqrt", "Pow", "Identity") and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    return node if node is not None and node.op_type in _REDUCTIONS else None


def _in_half(value: ir.Value) -> float | None:
    """A constant as it is in float16."""
    number = element(value, lambda _: None)
    return None if number is None else float(np.float16(number))


RULE = Rule(
    code="PX308",
    name="lost-epsilon",
    severity="warning",
    finds="an epsilon of a norm is 0 in float16",
    why="1e-12 is below float16's least number. Where the norm is 0 (a padded row, a constant row), the division gives "
    "NaN or infinity, and attention spreads it.",
    remedy="Keep norms in float32 (block them in the converter, for example op_block_list), or set epsilon to 1e-6 "
    "before converting; posexport convert --precision fp16 keeps them in float32.",
    check=_check,
    bad="""
        <ir_version: 8, opset_import: ["": 18]>
        lost (float16[B, T, D] x) => (float16[B, T, D] y)
        <int64[1] last = {-1}, float epsilon32 = {0.000000000001}>
        {
            squares = Mul (x, x)
            epsilon = Cast <to = 10> (epsilon32)
            variance = ReduceMean (squares, last)
            safe = Add (variance, epsilon)
            deviation = Sqrt (safe)
            y = Div (x, deviation)
        }
    """,
    good="""
        <ir_version: 8, opset_import: ["": 18]>
        kept (float16[B, T, D] x) => (float16[B, T, D] y)
        <int64[1] last = {-1}, float epsilon = {0.000000000001}>
        {
            wide = Cast <to = 1> (x)
            squares = Mul (wide, wide)
            variance = ReduceMean (squares, last)
            safe = Add (variance, epsilon)
            deviation = Sqrt (safe)
            normed = Div (wide, deviation)
            y = Cast <to = 10> (normed)
        }
    """,
)
