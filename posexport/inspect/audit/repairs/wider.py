"""Computes a value of half precision again in float32, from what it is computed from."""

from collections.abc import Container

import numpy as np
import onnx_ir as ir

from posexport.graph.builder import Builder
from posexport.graph.edits import replace
from posexport.inspect.audit.repairs.repair import NotRepairedError

_HALF = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def in_float32(
    g: Builder, value: ir.Value, through: Container[str], *, exact: bool, known: dict[ir.Value, ir.Value]
) -> ir.Value:
    """``value`` in float32; what is not computed by an operator of ``through`` is cast.

    Args:
        exact: rounded values do not do: constants must be integers, and a value that is no cast cannot be repaired.
        known: values that were computed again before.

    Raises:
        NotRepairedError: see ``exact``.
    """
    if value.dtype not in _HALF:
        return value
    if value not in known:
        known[value] = _again(g, value, through, exact=exact, known=known)
    return known[value]


def _again(
    g: Builder, value: ir.Value, through: Container[str], *, exact: bool, known: dict[ir.Value, ir.Value]
) -> ir.Value:
    tensor = ir.convenience.get_const_tensor(value)
    if tensor is not None:
        array = np.asarray(tensor.numpy(), np.float32)
        if exact and not np.array_equal(array, np.round(array)):
            raise NotRepairedError(
                f"{value.name!r} is stored in half precision: its float32 values are not in the file"
            )
        return g.Constant(value=ir.tensor(array))
    node = value.producer()
    if node is not None and node.op_type == "Cast" and not node.domain and (source := node.inputs[0]) is not None:
        if source.dtype == ir.DataType.FLOAT:
            return source
        if source.dtype not in _HALF:
            return g.Cast(source, to=ir.DataType.FLOAT)
    if node is None or node.domain or node.op_type not in through:
        if exact:
            raise NotRepairedError(f"{value.name!r} is in half precision from the start")
        return g.Cast(value, to=ir.DataType.FLOAT)
    operands = [
        None if operand is None else in_float32(g, operand, through, exact=exact, known=known)
        for operand in node.inputs
    ]
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    return g.op(node.op_type, *operands, **attributes)


def replace_by_cast(g: Builder, value: ir.Value, wide: ir.Value) -> ir.Value:
    """Let all readers of ``value`` read ``wide`` in its type; nodes that nothing reads any more are removed."""
    node, dtype = value.producer(), value.dtype
    narrow = g.Cast(wide, to=dtype)
    replace(value, narrow)
    remove_unread(node)
    return narrow


def remove_unread(node: ir.Node | None) -> None:
    """Remove a node that nothing reads any more, and all that only it reads."""
    waiting = [node]
    while waiting:
        unread = waiting.pop()
        if unread is None or unread.graph is None or any(y.uses() or y.is_graph_output() for y in unread.outputs):
            continue
        waiting += [x.producer() for x in unread.inputs if x is not None]
        unread.graph.remove(unread, safe=True)
