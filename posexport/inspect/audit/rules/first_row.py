"""PX203: the first row's positions used for all rows of a batch."""

from collections.abc import Iterator

import onnx_ir as ir

from posexport.inspect.audit.analyses.position_values import origins, steps
from posexport.inspect.audit.rule import Place, Rule, name_of
from posexport.inspect.audit.subject import Subject


def _check(subject: Subject) -> Iterator[Place]:
    reported: set[ir.Node] = set()
    for node in subject.nodes:
        positions = _positions(node)
        for value in steps(positions, angles=True) if positions is not None else ():
            step = value.producer()
            rows = None if step is None or step in reported else _rows(step, subject)
            if step is None or rows is None:
                continue
            reported.add(step)
            yield Place(
                f"{name_of(node)!r} rotates by the positions of the first row: {step.op_type} takes it from "
                f"{rows.name!r} {subject.sizes.shape_text(subject.sizes.of(rows) or ())}",
                [step, node],
            )


def _positions(node: ir.Node) -> ir.Value | None:
    """The positions that a node rotates by, or reads rows of a table of angles or embeddings by."""
    if node.op_type in ("Cos", "Sin") and not node.domain:
        return node.inputs[0]
    if node.op_type == "RotaryEmbedding" and node.domain == "com.microsoft":
        return node.inputs[1]
    if node.op_type == "Gather" and not node.domain and node.inputs[0] is not None:
        return node.inputs[1] if ir.convenience.get_const_tensor(node.inputs[0]) is not None else None
    return None


def _rows(step: ir.Node, subject: Subject) -> ir.Value | None:
    """The positions by row, [B, T], if ``step`` takes row 0 of them."""
    data = step.inputs[0] if step.op_type in ("Gather", "Slice") and not step.domain else None
    shape = subject.sizes.of(data)
    if (
        data is None
        or shape is None
        or len(shape) != 2
        or not isinstance(shape[0], str)
        or not _takes_first(step, subject)
    ):
        return None
    # a range that was expanded to all rows is the same in each
    by_row = [origin for origin in origins(data, subject.roles) if _is_by_row(origin, subject)]
    return data if by_row else None


def _is_by_row(origin: ir.Value, subject: Subject) -> bool:
    shape = subject.sizes.of(origin)
    return shape is not None and len(shape) == 2 and isinstance(shape[0], str)


def _takes_first(step: ir.Node, subject: Subject) -> bool:
    """Whether a Gather or Slice keeps row 0 alone."""
    elements = [subject.sizes.elements(value) for value in step.inputs[1:]]
    if step.op_type == "Gather":
        return step.attributes.get_int("axis", 0) == 0 and elements[0] == [0]
    starts, ends, axes, *strides = [*elements, *[None] * (4 - len(elements))][:4]
    if not starts or not ends or strides not in ([None], [[1]]):
        return False
    rows = {axis: (start, end) for axis, start, end in zip(axes or [0, 1], starts, ends, strict=False)}
    return rows.get(0, rows.get(-2)) == (0, 1)


RULE = Rule(
    code="PX203",
    name="first-row",
    severity="error",
    finds="the positions of a batch's first row are used for all of its rows",
    why="With padding on the left, rows have different positions: all but the first are rotated by another row's. A "
    "batch of one is right, and so are rows of one length.",
    remedy="Use an operator that takes positions by row (position_ids of [B, T], cosines and sines of [B, T, D]), or "
    "declare a batch of 1.",
    check=_check,
    bad="""
        <ir_version: 8, opset_import: ["": 18]>
        first (float[B, T, 1] x, int64[B, T] position_ids) => (float[T] angles)
        <int64 zero = {0}>
        {
            row = Gather (position_ids, zero)
            single = Cast <to = 1> (row)
            angles = Cos (single)
        }
    """,
    good="""
        <ir_version: 8, opset_import: ["": 18]>
        every (float[B, T, 1] x, int64[B, T] position_ids) => (float[B, T] angles)
        {
            single = Cast <to = 1> (position_ids)
            angles = Cos (single)
        }
    """,
)
