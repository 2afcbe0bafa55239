"""Reads the quantized tables of a file that ids look rows up in."""

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from posexport.proof.quantized.records import Array, Stored, StoredError, Use, constant, dequantized, tensor_name


def lookup(node: ir.Node, known: set[ir.Value], content: set[ir.Value]) -> Use | None:
    """The quantized table of a Gather, with its scales by the same ids; ``content``: values that depend on tokens."""
    if node.op_type != "Gather" or node.domain:
        return None
    # rows of [N, K], or columns of [K, N]
    whole = _quantized(node.inputs[0], known, across=1 - node.attributes.get_int("axis", 0) % 2)
    if whole is None:
        return None
    values, scale, zero, size = whole if isinstance(whole, tuple) else _scaled(node, whole)
    name = tensor_name(node.inputs[0])
    if node.inputs[1] not in content:
        raise StoredError(f"{name} is a table that positions look up, and it is quantized")
    n = len(values)
    lowest, highest = (0, 255) if values.dtype == np.uint8 else (-128, 127)
    scales = np.broadcast_to(scale.astype(np.float64).reshape(n, -1), (n, -(-values.shape[1] // size)))
    zeros = np.broadcast_to(np.asarray(zero, np.float64).reshape(-1, 1), scales.shape)
    return Use(Stored(name, values, scales, zeros, size, lowest, highest), lookup=True)


def _quantized(
    value: ir.Value | None, known: set[ir.Value], across: int
) -> "Array | tuple[Array, Array, float, int] | None":
    """Whole numbers of a table; or of one that is dequantized before, with its scales. ``across``: as there."""
    producer = None if value is None else value.producer()
    if producer is not None and producer.op_type == "DequantizeLinear":
        stored = dequantized(producer, known, across=across)
        return None if stored is None else (stored.whole[:], stored.scale, float(stored.zero.flat[0]), stored.size)
    table = constant(value)
    if table is None or table.ndim < 2 or table.dtype.kind not in "iuV" or table.dtype.itemsize > 1:
        return None
    constant(value, known)
    return table


def _scaled(node: ir.Node, table: Array) -> tuple[Array, Array, float, int]:
    """[N, K], its scales, what means 0, and how many share a scale, of a Gather's readers."""
    if node.attributes.get_int("axis", 0) == 1:  # columns of [K, N], by DequantizeLinear
        after = next(user for user, _ in node.outputs[0].uses())
        scale = _gathered(after.inputs[1]) if after.op_type == "DequantizeLinear" else None
        if scale is None:
            raise StoredError(f"{tensor_name(node.inputs[0])} is looked up in a way that is not known")
        return table.T, scale.T, 0.0, after.attributes.get_int("block_size", 0) or len(table)
    zero, value = 0.0, node.outputs[0]
    for _ in range(5):
        users = [user for user, _ in value.uses()]
        if len(users) != 1:
            break
        user = users[0]
        if user.op_type == "Sub":
            zero = float(np.asarray(constant(user.inputs[1])).reshape(-1)[0])
        if user.op_type == "Mul":
            other = user.inputs[1] if user.inputs[0] is value else user.inputs[0]
            scale = _gathered(other)
            if scale is not None:
                return _rows(table, scale, zero, user)
        value = user.outputs[0]
    raise StoredError(f"{tensor_name(node.inputs[0])} is looked up in a way that is not known")


def _rows(table: Array, scale: Array, zero: float, mul: ir.Node) -> tuple[Array, Array, float, int]:
    """Rows of blocks [N, B, size] as [N, K]; what fills the last block up is cut off where the graph does."""
    if table.ndim == 2:
        return table, scale, zero, table.shape[1]
    size, k = table.shape[2], table.shape[1] * table.shape[2]
    for user in _after(mul.outputs[0]):
        if user.op_type == "Slice":
            end = constant(user.inputs[2])
            k = k if end is None else int(end.reshape(-1)[0])
    return table.reshape(len(table), -1)[:, :k], scale, zero, size


def _after(value: ir.Value) -> Iterator[ir.Node]:
    for user, _ in value.uses():
        yield user
        if user.op_type == "Reshape":
            yield from (reader for reader, _ in user.outputs[0].uses())


def _gathered(value: ir.Value | None) -> Array | None:
    """The table of the Gather that computes ``value``, through Unsqueeze and Cast too."""
    producer = None if value is None else value.producer()
    while producer is not None and producer.op_type in ("Unsqueeze", "Cast", "Reshape"):
        producer = None if producer.inputs[0] is None else producer.inputs[0].producer()
    return constant(producer.inputs[0]) if producer is not None and producer.op_type == "Gather" else None
