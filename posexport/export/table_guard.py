"""The guard of position tables for a device: rows of positions beyond the table become NaN, and nothing is waited for.

The guard of sizes would have the host read the largest position from the device, a copy and a wait in every call, and
no CUDA graph. Left alone, CUDA's Gather answers zeros where an index is beyond the table: an answer that looks right.
NaN does not, and it stays in what follows from the token. The CPU's Gather fails at such an index; its name is the
guard's message.
"""

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir
import onnx_ir.tape

from posexport.graph.edits import initializer, integers


def insert(graph: ir.Graph, positions: ir.Value, size: int, text: str) -> bool:
    """Guard what is read at ``positions`` [B or 1, T], which must be below ``size``, out of tables [R, C].

    False, and nothing changed, where they are read in another way.
    """
    lookups = list(_lookups(positions))
    ranks = {len(node.outputs[0].shape or ()) for node in lookups}
    if ranks != {len("BTC")} or len(positions.shape or ()) != len("BT"):
        return False
    beyond = _beyond(graph, positions, size)
    for number, node in enumerate(lookups):
        node.name = f"{text}: {node.name}" if number else text
        _poison(graph, node, beyond)
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


def _beyond(graph: ir.Graph, positions: ir.Value, size: int) -> ir.Value:
    """Which positions are not below ``size``, bool [B or 1, T, 1]."""
    tape = ir.tape.Tape()
    beyond = tape.op("GreaterOrEqual", [positions, integers(graph, [size])])
    column = tape.op("Unsqueeze", [beyond, integers(graph, [-1])])
    _name(tape, f"{positions.name}_beyond")
    graph.insert_before(graph[0], tape.nodes)
    return column


def _poison(graph: ir.Graph, node: ir.Node, beyond: ir.Value) -> None:
    """NaN in the place of those rows that the Gather reads."""
    row = node.outputs[0]
    assert node.graph is not None
    assert row.dtype is not None
    users = list(row.uses())
    nothing = initializer(graph, f"{row.name}_nan", ir.tensor(np.array(np.nan, row.dtype.numpy())))
    tape = ir.tape.Tape()
    guarded = tape.op("Where", [beyond, nothing, row])
    guarded.shape, guarded.type = row.shape, row.type
    _name(tape, f"{row.name}_guarded")
    for user, place in users:
        user.replace_input_with(place, guarded)
    node.graph.insert_after(node, tape.nodes)


def _name(tape: ir.tape.Tape, name: str) -> None:
    for number, node in enumerate(tape.nodes):
        node.name = node.outputs[0].name = f"{name}_{number}"
