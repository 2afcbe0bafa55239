"""Which nodes of a graph compute positions, by what they depend on. Imports no torch.

Tables looked up by position, angles, cosines, distances, buckets: all that follows from counting and from nothing that
the tokens say. What only shapes are made of is not counted, nor what follows from the mask without counting.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from posexport.graph.operators import SHAPES
from posexport.graph.protos import all_nodes

#: counts tokens: what they give are positions
_COUNTING = frozenset(["Range", "CumSum"])
#: sums of what was turned are turned
_SUMS = frozenset(["Add", "Sub", "Concat"])


def positional(nodes: Sequence[Any], roles: Mapping[str, str]) -> set[int]:
    """Indices of the nodes (onnx.NodeProto, in order) that work for positions.

    ``roles``: of every input of the graph, as in `posexport.spec.InputSpec`. Products of tokens with positions, and
    their sums, are among them: rotations that have no node of their own.
    """
    #: values that hold something of the tokens; of these, products with positions; that were counted; of the mask
    content = {name for name, role in roles.items() if role not in ("mask", "positions", "lengths")}
    rotated: set[str] = set()
    counted = {name for name, role in roles.items() if role == "positions"}
    masked = {name for name, role in roles.items() if role in ("mask", "lengths")}
    indices = set()
    for index, node in enumerate(nodes):
        inputs = {name for inner in all_nodes([node]) for name in inner.input if name}
        if node.op_type in SHAPES:
            continue
        if tokens := inputs & content:
            content.update(node.output)
            product = node.op_type == "Mul" and inputs & counted
            if product or (node.op_type in _SUMS and tokens <= rotated):
                rotated.update(node.output)
                indices.add(index)
        elif node.op_type in _COUNTING or inputs & counted:
            if inputs & masked and node.op_type not in _COUNTING:
                masked.update(node.output)
                continue
            counted.update(node.output)
            indices.add(index)
        elif inputs & masked:
            masked.update(node.output)
    return indices
