"""What values of a graph are computed from and where they go, into bodies and out of them."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from posexport.graph import dataflow
from posexport.graph.bodies import with_bodies
from posexport.graph.operators import CONTROL_FLOW

#: what may lie between a masked score and its softmax: it stays masked when it becomes -inf
_TO_SOFTMAX = {
    *("Add", "Cast", "Concat", "Expand", "Flatten", "Gather", "Identity", "Pad", "Reshape", "Slice", "Split"),
    *("Squeeze", "Tile", "Transpose", "Unsqueeze", "Where"),
}
#: the inputs that are scores or are added to them, by operator
_SCORES: Mapping[tuple[str, str], Sequence[int]] = {
    ("", "Softmax"): (0,),
    ("", "Attention"): (3,),
    ("com.microsoft", "MultiHeadAttention"): (5,),
    ("com.microsoft", "GroupQueryAttention"): (10,),
    ("com.microsoft", "Attention"): (5,),
}


class Flows:
    """Of a graph without functions."""

    #: stands for readers that are not on the way to a softmax
    _elsewhere = ir.Value(name="elsewhere")

    def __init__(self, graph: ir.Graph) -> None:
        self._from = dataflow.passed_values(graph.all_nodes())
        self._to: dict[ir.Value, list[ir.Value]] = defaultdict(list)
        for value, others in self._from.items():
            for other in others:
                self._to[other].append(value)
        self._outputs = set(graph.outputs)
        weights = [value for each in with_bodies(graph) for value in each.initializers.values()]
        self._infinite = {value for value in weights if _infinite(value.const_value)}
        for node in graph.all_nodes():
            tensors = (a.as_tensor() for a in node.attributes.values() if a.type == ir.AttributeType.TENSOR)
            if any(map(_infinite, tensors)):
                self._infinite.update(node.outputs)

    def sources(self, value: ir.Value, stops: Mapping[ir.Value, int]) -> tuple[frozenset[int], bool]:
        """The first of ``stops`` on all ways back from ``value``, and whether a way leads to an infinite constant."""
        every = set(dataflow.sources(value, stops=stops, breaks=(), passed=self._from))
        return frozenset(stops[each] for each in every if each in stops), not every.isdisjoint(self._infinite)

    def leads_to_softmax(self, value: ir.Value) -> bool:
        """Whether all that becomes of ``value`` is added to scores, which a softmax reads."""
        ended = False

        def onward(each: ir.Value) -> Iterator[ir.Value]:
            nonlocal ended
            yield from self._to[each]
            for node, index in each.uses():
                if index in _SCORES.get((node.domain, node.op_type), ()):
                    ended = True
                elif node.op_type in _TO_SOFTMAX and not node.domain:
                    yield from node.outputs
                elif node.op_type not in CONTROL_FLOW or node.domain:
                    yield self._elsewhere

        walked = set(dataflow.reachable([value], onward))
        return ended and self._elsewhere not in walked and not walked & self._outputs


def _infinite(tensor: "ir.TensorProtocol | None") -> bool:
    if tensor is None or not tensor.dtype.is_floating_point():
        return False
    # a parameter of a layer is no mask: reading it would take its time and memory
    return tensor.size < 1 << 20 and bool(np.isinf(np.asarray(tensor.numpy(), np.float32)).any())
