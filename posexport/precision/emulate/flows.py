"""What values of a graph are computed from and where they go, into bodies and out of them."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from posexport.graph.bodies import bodies

_CONTROL_FLOW = ("If", "Loop", "Scan")
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
        self._from: dict[ir.Value, list[ir.Value]] = defaultdict(list)
        self._to: dict[ir.Value, list[ir.Value]] = defaultdict(list)
        self._infinite: set[ir.Value] = set()
        self._outputs = set(graph.outputs)
        self._graph(graph)

    def _graph(self, graph: ir.Graph) -> None:
        self._infinite |= {value for value in graph.initializers.values() if _infinite(value.const_value)}
        for node in graph:
            if node.op_type in _CONTROL_FLOW and not node.domain:
                self._control_flow(node)
                continue
            given = [value for value in node.inputs if value is not None]
            for value in node.outputs:
                self._from[value] += given
            tensors = (a.as_tensor() for a in node.attributes.values() if a.type == ir.AttributeType.TENSOR)
            if any(map(_infinite, tensors)):
                self._infinite |= set(node.outputs)

    def _control_flow(self, node: ir.Node) -> None:
        for body in bodies(node).values():
            self._graph(body)
            results = body.outputs[1:] if node.op_type == "Loop" else body.outputs
            for outer, inner in zip(node.outputs, results, strict=False):
                self._moves(inner, outer)
            for fed, inside in zip(node.inputs, body.inputs, strict=False):
                if fed is not None:
                    self._moves(fed, inside)
            if node.op_type == "If":
                continue
            # what a turn leaves, the next one finds
            states = body.inputs[2:] if node.op_type == "Loop" else body.inputs
            carried = len(states) - node.attributes.get_int("num_scan_inputs", 0)
            for after, before in zip(results[:carried], states[:carried], strict=False):
                self._moves(after, before)

    def _moves(self, value: ir.Value, other: ir.Value) -> None:
        self._from[other].append(value)
        self._to[value].append(other)

    def sources(self, value: ir.Value, stops: Mapping[ir.Value, int]) -> tuple[frozenset[int], bool]:
        """The first of ``stops`` on all ways back from ``value``, and whether a way leads to an infinite constant."""
        found: set[int] = set()
        infinite = False
        for each in self._walk(value, lambda each: () if each in stops else self._from[each]):
            if each in stops:
                found.add(stops[each])
            infinite |= each in self._infinite
        return frozenset(found), infinite

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
                elif node.op_type not in _CONTROL_FLOW or node.domain:
                    yield self._elsewhere

        walked = set(self._walk(value, onward))
        return ended and self._elsewhere not in walked and not walked & self._outputs

    @staticmethod
    def _walk(value: ir.Value, onward: Callable[[ir.Value], Iterable[ir.Value]]) -> Iterator[ir.Value]:
        seen, todo = {value}, [value]
        while todo:
            each = todo.pop()
            yield each
            for other in onward(each):
                if other not in seen:
                    seen.add(other)
                    todo.append(other)


def _infinite(tensor: "ir.TensorProtocol | None") -> bool:
    if tensor is None or not tensor.dtype.is_floating_point():
        return False
    # a parameter of a layer is no mask: reading it would take its time and memory
    return tensor.size < 1 << 20 and bool(np.isinf(np.asarray(tensor.numpy(), np.float32)).any())
