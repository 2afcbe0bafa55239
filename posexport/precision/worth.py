"""Whether a file gets smaller when a weight is quantized: bytes of values and scales, and of the nodes that it takes.

Integers take a quarter of a weight's bytes or less, but a node takes some 400, most of them notes on where it was
traced: in int8, which needs about ten, nothing is gained of matrices below 40 by 40.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from posexport.graph.queries import NOTES
from posexport.precision.derived import Derived
from posexport.precision.linear import Projection

#: how often a node's name is in a file: its own, its output's, in that one's type, at the node that reads it
_NAMES = 4
#: bytes of a node, or of a tensor, beside names and notes: operator, attributes, shapes
_PLAIN = 120
#: by how many bytes a product itself is longer then: attributes, inputs, names
_LONGER = 300


@dataclass(frozen=True)
class Replacement:
    """What a pass puts in the place of a linear projection.

    Attributes:
        tensors: of a projection, what its weight is stored as.
        nodes: how many more nodes a projection has then.
        shared_nodes: how many are added for what is projected, once for all its projections.
    """

    tensors: Callable[[Projection], Mapping[str, Derived]]
    nodes: int
    shared_nodes: int = 0


def shrinking(chosen: Sequence[Projection], replacement: Replacement) -> list[Projection]:
    """Those of ``chosen`` whose weight and nodes take fewer bytes than now; weights of several readers as a whole."""
    readers = Counter(each.x for each in chosen)
    gained: dict[ir.Value, float] = {}
    for each in chosen:
        weight = each.weight
        nodes = replacement.nodes + replacement.shared_nodes / readers[each.x]
        nodes += each.bias is not None and each.add is None  # a Gemm's own becomes an Add
        if weight.value not in gained:
            stored = replacement.tensors(each)
            now, then = sum(tensor.nbytes for tensor in weight.stored), sum(each.nbytes for each in stored.values())
            gained[weight.value] = now - then * len(weight.stored) - _PLAIN * (len(stored) - 1)
        gained[weight.value] -= _LONGER + nodes * node_bytes(each.product)
    return [each for each in chosen if gained[each.weight.value] > 0]


def node_bytes(like: ir.Node) -> int:
    """Of a node that is inserted for ``like``, with its notes and a longer name."""
    notes = sum(len(key) + len(note) for key, note in like.metadata_props.items() if key in NOTES)
    return _PLAIN + _NAMES * len(like.outputs[0].name or "") + notes
