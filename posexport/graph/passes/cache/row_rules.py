"""How rows of an operator's output follow from rows of its inputs, in whole values.

A rule returns the rows, or None where it does not know them. Rows of ``roles`` have an axis of the batch in front.
"""

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from posexport.graph.builder import Operand
from posexport.graph.passes.cache.rows import Role, Roles, Rows, Rule

RULES: dict[str, Rule] = {}
REDUCTIONS = ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2")


def rule(*operators: str) -> Callable[[Rule], Rule]:
    """Register a rule for operators."""

    def registered(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(operators, function))
        return function

    return registered


def constants(value: ir.Value | None) -> list[int] | None:
    """The elements of a constant of integers."""
    if value is None or value.const_value is None:
        return None
    return [int(number) for number in value.const_value.numpy().reshape(-1)]


def axes_of(node: ir.Node, index: int, rank: int) -> list[int] | None:
    """The constant axes that input ``index`` names, or the attribute, counted from the front of ``rank`` axes."""
    named = constants(node.inputs[index]) if len(node.inputs) > index else list(node.attributes.get_ints("axes") or ())
    return None if not named else [axis % rank for axis in named]


def _first(node: ir.Node) -> ir.Value:
    x = node.inputs[0]
    assert x is not None
    return x


@rule("elementwise")
def _elementwise(rows: Rows, node: ir.Node, value: ir.Value, roles: Roles) -> ir.Value | None:
    """Of the inputs' rows; of an input with equal rows one row."""
    known, rank = rows.known, rows.known.rank(value)
    operands = [x for x in node.inputs if x is not None]
    # for each axis an input that is picked, as the result must have rows
    needed = set()
    for axis in roles:
        having = [x for x in operands if axis - rank + known.rank(x) in known.token_axes(x)]
        vary = [x for x in having if known.constant_along(x, known.token_axes(x)) is None]
        needed |= {*vary[:1]} or {*having[:1]}
    inputs: list[Operand] = []
    for x in node.inputs:
        axes = [] if x is None else known.token_axes(x)
        if x is None or not axes:
            inputs.append(None if x is None else rows.whole.of(x))
            continue
        one = known.constant_along(x, axes) if x not in needed else None
        if one is not None:
            inputs.append(one)
            continue
        shift = rank - known.rank(x)
        of_input = {axis - shift: role for axis, role in roles.items() if axis - shift in axes}
        if set(of_input) != set(axes):
            return None
        inputs.append(rows.with_rank(rows.pick(x, of_input), known.rank(x), rank))
    return rows.again(node, value, inputs)


@rule("Unsqueeze")
def _unsqueeze(rows: Rows, node: ir.Node, value: ir.Value, roles: Roles) -> ir.Value | None:
    rank = rows.known.rank(value)
    axes = axes_of(node, 1, rank)
    if axes is None:
        return None
    remaining = [axis for axis in range(rank) if axis not in axes]
    picked = rows.pick(_first(node), {remaining.index(axis): role for axis, role in roles.items()})
    return rows.g.Unsqueeze(picked, [axis + 1 for axis in axes])


@rule("Squeeze")
def _squeeze(rows: Rows, node: ir.Node, _value: ir.Value, roles: Roles) -> ir.Value | None:
    rank = rows.known.rank(_first(node))
    axes = axes_of(node, 1, rank)
    if axes is None:
        return None
    remaining = [axis for axis in range(rank) if axis not in axes]
    picked = rows.pick(_first(node), {remaining[axis]: role for axis, role in roles.items()})
    return rows.g.Squeeze(picked, [axis + 1 for axis in axes])


@rule("Transpose")
def _transpose(rows: Rows, node: ir.Node, _value: ir.Value, roles: Roles) -> ir.Value | None:
    order = list(node.attributes.get_ints("perm") or ())
    picked = rows.pick(_first(node), {order[axis]: role for axis, role in roles.items()})
    return rows.g.Transpose(picked, perm=[0, *(axis + 1 for axis in order)])


@rule("Concat")
def _concat(rows: Rows, node: ir.Node, value: ir.Value, roles: Roles) -> ir.Value | None:
    axis = (node.attributes.get_int("axis") or 0) % rows.known.rank(value)
    parts = [x for x in node.inputs if x is not None]
    if axis in roles or any(set(rows.known.token_axes(x)) != set(roles) for x in parts):
        return None
    return rows.again(node, value, [rows.pick(x, roles) for x in parts], axis=axis + 1)


@rule("Split")
def _split(rows: Rows, node: ir.Node, value: ir.Value, roles: Roles) -> ir.Value | None:
    axis = (node.attributes.get_int("axis", 0) or 0) % rows.known.rank(value)
    if axis in roles:
        return None
    return rows.again(node, value, [rows.pick(_first(node), roles), *node.inputs[1:]], axis=axis + 1)


@rule("Slice")
def _slice(rows: Rows, node: ir.Node, value: ir.Value, roles: Roles) -> ir.Value | None:
    """Of other axes than the tokens'; or the first rows of a table, from a constant on, at the positions."""
    g, x, known = rows.g, _first(node), rows.known
    axes, starts = axes_of(node, 3, known.rank(value)), constants(node.inputs[1])
    steps = constants(node.inputs[4]) if len(node.inputs) > 4 else None
    if axes is None or starts is None:
        return None
    steps = steps or [1] * len(axes)
    if not set(axes) & set(roles):
        if constants(node.inputs[2]) is None:
            return None
        return g.Slice(rows.pick(x, roles), node.inputs[1], node.inputs[2], [axis + 1 for axis in axes], steps)
    if len(axes) != 1 or len(roles) != 1 or x in known.colours.sized or starts[0] < 0 or steps != [1]:
        return None
    (axis,) = axes
    at = rows.positions(value, roles[axis])
    picked = g.Gather(rows.whole.of(x), g.Add(at, starts[0]) if starts[0] else at, axis=axis)
    return rows.batch_in_front(picked, axis, known.rank(value) + 1)


@rule("Gather")
def _gather(rows: Rows, node: ir.Node, value: ir.Value, roles: Roles) -> ir.Value | None:
    """Rows of a table at indices that are picked, or of rows that are picked."""
    known, (data, at) = rows.known, node.inputs
    assert data is not None
    assert at is not None
    axis, span = (node.attributes.get_int("axis", 0) or 0) % known.rank(data), known.rank(at)
    if data not in known.colours.sized:
        of_input = {place - axis: role for place, role in roles.items() if axis <= place < axis + span}
        if len(of_input) != len(roles):
            return None
        picked = rows.g.Gather(rows.whole.of(data), rows.pick(at, of_input), axis=axis)
        return rows.batch_in_front(picked, axis, known.rank(value) + 1)
    if at in known.colours.sized or axis in known.token_axes(data):
        return None
    back = {place if place < axis else place - span + 1: role for place, role in roles.items()}
    return rows.g.Gather(rows.pick(data, back), at, axis=axis + 1)


@rule("MatMul")
def _matmul(rows: Rows, node: ir.Node, value: ir.Value, roles: Roles) -> ir.Value | None:
    """Rows of the first operand's rows and the second one's columns; no sum over tokens."""
    known, rank = rows.known, rows.known.rank(value)
    inputs: list[ir.Value | None] = []
    for index, x in enumerate(node.inputs):
        assert x is not None
        rank_of_x, axes = known.rank(x), known.token_axes(x)
        summed, other = (rank_of_x - 1, rank - 1) if index == 0 else (rank_of_x - 2, rank - 2)
        if rank_of_x < 2 or summed in axes:
            return None
        shift = rank - rank_of_x
        of_input = {axis - shift: role for axis, role in roles.items() if axis != other and axis - shift in axes}
        if set(of_input) != set(axes):
            return None
        inputs.append(rows.with_rank(rows.pick(x, of_input), rank_of_x, rank) if of_input else rows.whole.of(x))
    return rows.again(node, value, inputs)


@rule("Expand")
def _expand(rows: Rows, node: ir.Node, value: ir.Value, roles: Roles) -> ir.Value | None:
    x, known = _first(node), rows.known
    shift, axes = known.rank(value) - known.rank(x), known.token_axes(x)
    of_input = {axis - shift: role for axis, role in roles.items() if axis - shift in axes}
    shape = rows.shape(value, roles)
    if set(of_input) != set(axes) or shape is None:
        return None
    if not of_input:
        return rows.g.Expand(rows.whole.of(x), shape)
    return rows.g.Expand(rows.with_rank(rows.pick(x, of_input), known.rank(x), known.rank(value)), shape)


@rule("Reshape")
def _reshape(rows: Rows, node: ir.Node, value: ir.Value, roles: Roles) -> ir.Value | None:
    """Where axes of size 1 alone come or go."""
    x = _first(node)
    before, after = (rows.known.arrays(operand)[0].shape for operand in (x, value))
    if [size for size in before if size != 1] != [size for size in after if size != 1]:
        return None
    places = [axis for axis, size in enumerate(after) if size != 1]
    back = dict(zip(places, [axis for axis, size in enumerate(before) if size != 1], strict=True))
    shape = rows.shape(value, roles)
    if any(axis not in back for axis in roles) or shape is None:
        return None
    return rows.g.Reshape(rows.pick(x, {back[axis]: role for axis, role in roles.items()}), shape)


@rule(*REDUCTIONS)
def _reduce(rows: Rows, node: ir.Node, value: ir.Value, roles: Roles) -> ir.Value | None:
    """Over other axes than ``roles``: a sum over tokens is one over all keys."""
    x = _first(node)
    rank = rows.known.rank(x)
    axes = axes_of(node, 1, rank)
    if axes is None:
        return None
    keeps = bool(node.attributes.get_int("keepdims", 1))
    remaining = [axis for axis in range(rank) if keeps or axis not in axes]
    of_input: dict[int, Role] = {remaining[axis]: role for axis, role in roles.items()}
    of_input |= {axis: "keys" for axis in rows.known.token_axes(x) if axis in axes}
    if set(of_input) != set(rows.known.token_axes(x)):
        return None
    shifted = rows.g.shape([axis + 1 for axis in axes])
    return rows.again(node, value, [rows.pick(x, of_input), shifted])


@rule("Trilu")
def _trilu(rows: Rows, node: ir.Node, value: ir.Value, roles: Roles) -> ir.Value | None:
    """The lower triangle by positions."""
    g, rank, x = rows.g, rows.known.rank(value), _first(node)
    offset = constants(node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1] is not None else [0]
    is_upper = bool(node.attributes.get_int("upper", 1))
    if is_upper or offset is None or set(roles) != {rank - 2, rank - 1} or x.dtype is None:
        return None
    before = g.Add(g.Unsqueeze(rows.positions(value, roles[rank - 2]), [2]), offset[0])
    lower = g.LessOrEqual(g.Unsqueeze(rows.positions(value, roles[rank - 1]), [1]), before)
    lower = g.Unsqueeze(lower, list(range(1, rank - 1))) if rank > 2 else lower
    picked = rows.pick(x, roles)
    if x.dtype == ir.DataType.BOOL:  # ONNX Runtime's Where has no kernel for it
        return g.And(lower, picked)
    return g.Where(lower, picked, np.zeros((), x.dtype.numpy()))
