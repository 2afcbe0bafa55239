"""Which nodes of a graph compute positions, by what they depend on. Imports no torch.

Tables looked up by position, angles, cosines, distances, buckets: all that follows from counting and from nothing that
the tokens say. What only shapes are made of is not counted, nor what follows from the mask without counting.
"""

from collections.abc import Collection, Mapping

import onnx_ir as ir

from posexport.graph.bodies import bodies
from posexport.graph.dataflow import dependents
from posexport.graph.operators import SHAPES

#: counts tokens: what they return are positions
_COUNTING = frozenset(["Range", "CumSum"])
#: sums of what was rotated are rotated
_SUMS = frozenset(["Add", "Sub", "Concat"])
_MASKS = ("mask", "lengths")


def positional(graph: ir.Graph, roles: Mapping[str, str]) -> set[ir.Node]:
    """The nodes that work for positions, of the graph and not of its bodies.

    ``roles``: of every input of the graph, as in `posexport.spec.InputSpec`. Products of tokens with positions, and
    their sums, are among them: rotations that have no node of their own.
    """

    def of_roles(several: Collection[str]) -> list[ir.Value]:
        return [value for value in graph.inputs if roles.get(value.name or "") in several]

    content = dependents(graph, of_roles({*roles.values()} - {*_MASKS, "positions"}), breaks=SHAPES)
    masked = dependents(graph, of_roles(_MASKS), breaks=SHAPES | _COUNTING)
    # counted from the mask or from sizes, not from what tokens say
    counting = [node for node in graph if node.op_type in _COUNTING and content.isdisjoint(_read(node))]
    positions = [*of_roles(["positions"]), *(value for node in counting for value in node.outputs)]
    counted = dependents(graph, positions, breaks=SHAPES) - content - masked
    rotated: set[ir.Value] = set()
    nodes = set()
    for node in graph:
        read = _read(node)
        if node.op_type in SHAPES:
            continue
        if tokens := read & content:
            if (node.op_type == "Mul" and read & counted) or (node.op_type in _SUMS and tokens <= rotated):
                rotated.update(node.outputs)
                nodes.add(node)
        elif node.op_type in _COUNTING or (read & counted and not read & masked):
            nodes.add(node)
    return nodes


def _read(node: ir.Node) -> set[ir.Value]:
    """All that a node and its bodies read."""
    inner = [each for body in bodies(node).values() for each in body.all_nodes()]
    return {value for each in (node, *inner) for value in each.inputs if value is not None}
