"""PX204: RoBERTa's and OPT's position tables read from row 0."""

from collections.abc import Iterator

import onnx_ir as ir

from posexport.inspect.audit.analyses.positions import lookups
from posexport.inspect.audit.analyses.scalars import element
from posexport.inspect.audit.rule import Place, Rule, name_of
from posexport.inspect.audit.subject import Subject

#: rows in front of the first position's, of RoBERTa (ids 0 and 1, padding's), BART and OPT
_OFFSET = 2
#: lengths that tables have
_LENGTHS = {2**power for power in range(6, 18)}
#: values of the table of both graphs
_ROWS = ", ".join(["1.0"] * (64 + _OFFSET))


def _check(subject: Subject) -> Iterator[Place]:
    for lookup in lookups(subject.nodes, subject.roles, subject.sizes):
        if subject.by_posexport or lookup.origin == "input":
            continue
        if lookup.rows - _OFFSET not in _LENGTHS and not (lookup.rows > _OFFSET and _has_padding_row(lookup.table)):
            continue
        first = element(lookup.node.inputs[1], lambda value: _first(value, subject))
        if first == 0:
            yield Place(
                f"{name_of(lookup.node)!r} reads {lookup.table.name!r} ({lookup.rows} rows) from row 0 on; the first "
                f"position seems to be at row {_OFFSET}",
                [lookup.node],
            )


def _has_padding_row(table: ir.Value) -> bool:
    """Whether row 1 is 0, as the row of RoBERTa's padding id is, and the rows around it are not."""
    tensor = ir.convenience.get_const_tensor(table)
    if tensor is None:
        return False
    before, padding, after = (bool(row.any()) for row in tensor.numpy()[: _OFFSET + 1])
    return before and not padding and after


def _first(value: ir.Value, subject: Subject) -> float | None:
    """The element of the first token of a row without padding, for leaves of positions."""
    if value in subject.roles.masks:
        return 1.0
    node = value.producer()
    if node is None or node.domain:
        return None
    if node.op_type == "Range":
        return element(node.inputs[0], lambda value: _first(value, subject))
    if node.op_type == "CumSum":
        return element(node.inputs[0], lambda value: _first(value, subject))
    if node.op_type in ("Equal", "Not") and any(value in subject.roles.ids for value in _behind(node)):
        # token ids are compared with padding's: none of this row is
        return 0.0 if node.op_type == "Equal" else 1.0
    return None


def _behind(node: ir.Node) -> Iterator[ir.Value]:
    for value in node.inputs:
        if value is None:
            continue
        yield value
        before = value.producer()
        if before is not None and before.op_type in ("Equal", "Cast"):
            yield from (operand for operand in before.inputs if operand is not None)


RULE = Rule(
    code="PX204",
    name="missing-offset",
    severity="warning",
    finds="a position table with two rows in front of the first position's is read from row 0",
    why="RoBERTa, XLM-RoBERTa, CamemBERT, BART and OPT keep their first position at row 2: every token gets the "
    "embedding of a position 2 earlier, and the first two those of padding.",
    remedy="Add the offset to the positions (padding_idx + 1 + range), or export with the model's create_position_ids; "
    "if the model was trained so, ignore this.",
    check=_check,
    bad="""
        <ir_version: 8, opset_import: ["": 18]>
        from_zero (int64[B, T] ids) => (float[T, 1] y)
        <float[66, 1] table = {ROWS}, int64 zero = {0}, int64 one = {1}>
        {
            length = Shape <start = 1, end = 2> (ids)
            end = Squeeze (length)
            positions = Range (zero, end, one)
            y = Gather (table, positions)
        }
    """.replace("ROWS", _ROWS),
    good="""
        <ir_version: 8, opset_import: ["": 18]>
        from_two (int64[B, T] ids) => (float[T, 1] y)
        <float[66, 1] table = {ROWS}, int64 zero = {0}, int64 one = {1}, int64 offset = {2}, int64 last = {65}>
        {
            length = Shape <start = 1, end = 2> (ids)
            end = Squeeze (length)
            range = Range (zero, end, one)
            positions = Add (range, offset)
            within = Min (positions, last)
            y = Gather (table, within)
        }
    """.replace("ROWS", _ROWS),
)
