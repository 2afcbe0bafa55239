"""Which nodes of a graph compute positions, by what they depend on. Imports no torch.

Tables looked up by position, angles, cosines, distances, buckets: all that follows from counting and from nothing that
the tokens say. What only shapes are made of is not counted, nor what follows from the mask without counting.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

#: counts tokens: what they give are positions
_COUNTING = frozenset(["Range", "CumSum"])
#: nothing of what the input holds is left in the output
_SHAPES = frozenset(["Shape", "Size", "ConstantOfShape"])
#: sums of what was turned are turned
_SUMS = frozenset(["Add", "Sub", "Concat"])


def positional(nodes: Sequence[Any], roles: Mapping[str, str]) -> set[int]:
    """Indices of the nodes (onnx.NodeProto, in order) that work for positions.

    ``roles``: of every input of the graph, as in `posexport.spec.InputSpec`. Products of tokens with positions, and
    their sums, are among them: rotations that have no node of their own.
    """
    #: values that hold something of the tokens; of these, products with positions; that were counted; of the mask
    content = {name for name, role in roles.items() if role not in ("mask", "positions")}
    rotated: set[str] = set()
    counted = {name for name, role in roles.items() if role == "positions"}
    masked = {name for name, role in roles.items() if role == "mask"}
    indices = set()
    for index, node in enumerate(nodes):
        inputs = set(read(node))
        if node.op_type in _SHAPES:
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


def read(node: Any) -> Iterator[str]:
    """All that a node reads, what its bodies read of the outside too."""
    yield from (name for name in node.input if name)
    for attribute in node.attribute:
        for body in [attribute.g, *attribute.graphs]:
            for inner in body.node:
                yield from read(inner)
