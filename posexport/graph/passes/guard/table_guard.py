"""The guard of position tables for a device: rows of positions beyond the table become NaN, and nothing is waited for.

The guard of sizes would have the host read the largest position from the device, a copy and a wait in every call, and
no CUDA graph. Without a guard, CUDA's Gather returns zeros beyond the end of the table, which look right.
NaN does not, and it stays in all that is computed from the token. The CPU's Gather fails at such an index; its name is
the guard's message.
"""

import math
from collections.abc import Iterator

import onnx_ir as ir

from posexport.graph.builder import Builder


def insert(graph: ir.Graph, positions: ir.Value, size: int, text: str) -> bool:
    """Guard the rows that are read of tables [R, C] at ``positions`` [B or 1, T], which must be below ``size``.

    False, and nothing changed, where they are read in another way.
    """
    lookups = list(_lookups(positions))
    ranks = {len(node.outputs[0].shape or ()) for node in lookups}
    if ranks != {len("BTC")} or len(positions.shape or ()) != len("BT"):
        return False
    g = Builder.at_start(graph, name=f"{positions.name}_beyond")
    beyond = g.Unsqueeze(g.GreaterOrEqual(positions, [size]), [-1])  # bool [B or 1, T, 1]
    for number, node in enumerate(lookups):
        node.name = f"{text}: {node.name}" if number else text
        output = node.outputs[0]
        users = list(output.uses())
        g = Builder.at(node, after=True, name=f"{output.name}_guarded")
        guarded = g.op("Where", beyond, math.nan, output, shape=output.shape)
        for user, place in users:
            user.replace_input_with(place, guarded)
    return True


def _lookups(positions: ir.Value) -> Iterator[ir.Node]:
    """The Gathers of rows of floating-point tables at indices that follow from the positions."""
    left, seen = [positions], set[ir.Value]()
    while left:
        value = left.pop()
        for node, place in value.uses():
            table = node.inputs[0]
            if node.op_type == "Gather" and not node.domain and place == 1 and _is_float(table):
                if node.attributes.get_int("axis", 0) == 0:
                    yield node
                continue
            for output in node.outputs:
                if output not in seen and output.dtype is not None and not _is_float(output):
                    seen.add(output)
                    left.append(output)


def _is_float(value: ir.Value | None) -> bool:
    return value is not None and value.dtype is not None and value.dtype.is_floating_point()
