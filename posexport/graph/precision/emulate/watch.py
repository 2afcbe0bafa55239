"""The range of every value before it is rounded: outputs with the extremes, added to an emulated copy.

A place of rounding is a Cast to float16; an emulated copy has no others. The largest and the smallest values of all
places of a graph form one vector, which is an output of every graph around it: of the branch of an If that did not run
it is 0, of a Loop or a Scan there is one for each iteration.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from posexport.graph import dataflow
from posexport.graph.protos import SCOPES, module_paths
from posexport.graph.queries import CONTROL_FLOW, bodies, with_bodies

#: a path up to its first number: ``encoder.layer.3`` of ``encoder.layer.3.attention``
_NUMBERED = re.compile(r"^(.*?[./]\d+)(?:[./]|$)")
#: the same in a node's name, which other tools make of the path: ``/encoder/layer.3/attention/MatMul``
_IN_NAME = re.compile(r"((?:[A-Za-z_]+[./])*[A-Za-z_]+[./]\d+)(?=[./])")

#: nodes to go back for one that has metadata: passes insert nodes without it
_FAR = 30


def layer_of(node: ir.Node | None) -> str:
    """The layer of a node, or of the node that computes its first input, and so on; empty if it cannot be known."""
    for _ in range(_FAR):
        if node is None:
            return ""
        if path := _path(node):
            numbered = _NUMBERED.match(path)
            return numbered.group(1) if numbered else path
        if match := _IN_NAME.search((node.name or "").lstrip("/")):
            return match.group(1)
        node = next((value.producer() for value in node.inputs if value is not None and value.producer()), None)
    return ""


def _path(node: ir.Node) -> str:
    """The path of the innermost module that a node was traced in."""
    return next(reversed(module_paths(node.metadata_props.get(SCOPES, ""))), "")


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


class ValueFlow:
    """Where values of a graph without functions come from and whether they reach a softmax."""

    #: represents readers that do not lead to a softmax
    _elsewhere = ir.Value(name="elsewhere")

    def __init__(self, graph: ir.Graph) -> None:
        self._from = dataflow.passed_values(graph.all_nodes())
        self._to: dict[ir.Value, list[ir.Value]] = defaultdict(list)
        for value, successors in self._from.items():
            for other in successors:
                self._to[other].append(value)
        self._outputs = set(graph.outputs)
        weights = [value for body in with_bodies(graph) for value in body.initializers.values()]
        self._infinite = {value for value in weights if _infinite(value.const_value)}
        for node in graph.all_nodes():
            tensors = (a.as_tensor() for a in node.attributes.values() if a.type == ir.AttributeType.TENSOR)
            if any(map(_infinite, tensors)):
                self._infinite.update(node.outputs)

    def sources(self, value: ir.Value, stops: Mapping[ir.Value, int]) -> tuple[frozenset[int], bool]:
        """The nearest of ``stops`` that ``value`` is computed from, and whether an infinite constant takes part."""
        every = set(dataflow.sources(value, stops=stops, breaks=(), passed=self._from))
        return frozenset(stops[start] for start in every if start in stops), not every.isdisjoint(self._infinite)

    def leads_to_softmax(self, value: ir.Value) -> bool:
        """Whether ``value`` is only added to scores that a softmax reads."""
        ended = False

        def onward(current: ir.Value) -> Iterator[ir.Value]:
            nonlocal ended
            yield from self._to[current]
            for node, index in current.uses():
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


#: prefix of the added outputs' names
WATCHED = "posexport_range/"
_HALF = ir.DataType.FLOAT16


@dataclass(frozen=True)
class Site:
    """A rounded value.

    Attributes:
        node: that computes it.
        layer: as of `posexport.graph.precision.emulate.watch`.
        masked: it is only added to scores of a softmax, where -inf does no harm.
        before: the sites, by number, that it is computed from with none between them.
        infinite: an infinite constant takes part.
    """

    node: str
    op_type: str
    layer: str
    masked: bool
    before: frozenset[int]
    infinite: bool


@dataclass(frozen=True)
class Vector:
    """An output [..., 2n]: of n ``sites``, by number, the largest values, then the smallest."""

    name: str
    sites: tuple[int, ...]


def watch(model: ir.Model) -> tuple[list[Site], list[Vector]]:
    """Adds outputs to an emulated copy, in place; returns its sites in the order of computation, and the outputs.

    The graph's inputs are no sites.
    """
    places = [node for node in model.graph.all_nodes() if _rounds(node)]  # in the order in which they run
    numbers = {down: number for number, down in enumerate(places)}
    flow = ValueFlow(model.graph)
    rounded = {down.outputs[0]: number for down, number in numbers.items()}
    sites = [_site(down, flow, rounded) for down in places]
    vectors = []
    for extremes in _Writer(numbers).graph(model.graph):
        model.graph.outputs.append(extremes.value)
        vectors.append(Vector(extremes.value.name or "", extremes.sites))
    return sites, vectors


def _rounds(node: ir.Node) -> bool:
    if node.op_type != "Cast" or node.domain or node.attributes.get_int("to", 0) != _HALF:
        return False
    value = node.inputs[0]
    return value is not None and value.producer() is not None


def _site(down: ir.Node, flow: ValueFlow, rounded: dict[ir.Value, int]) -> Site:
    exact = down.inputs[0]
    assert exact is not None
    node = exact.producer()
    assert node is not None
    before, infinite = flow.sources(exact, rounded)
    return Site(
        node=node.name or (exact.name or "").removesuffix("/exact"),
        op_type=node.op_type,
        layer=layer_of(node),
        masked=flow.leads_to_softmax(down.outputs[0]),
        before=before - {rounded[down.outputs[0]]},
        infinite=infinite,
    )


@dataclass(frozen=True)
class _Extremes:
    """A vector in some graph; ``loops``: the number of leading axes for iterations of loops."""

    value: ir.Value
    sites: tuple[int, ...]
    loops: int = 0


@dataclass
class _Writer:
    """Adds nodes and outputs; names are numbered, so that none occurs twice in a file."""

    numbers: dict[ir.Node, int]
    _count: int = 0

    def graph(self, graph: ir.Graph) -> list[_Extremes]:
        """The vectors of a graph and of all bodies in it, as values of this graph."""
        extremes: list[_Extremes] = []
        sites: list[int] = []
        largest: list[ir.Value] = []
        smallest: list[ir.Value] = []
        one = self._node("Constant", [], value=ir.AttrTensor("value", ir.tensor(np.ones(1, np.int64))))
        one.outputs[0].dtype = ir.DataType.INT64
        for node in list(graph):
            if node.op_type == "If" and not node.domain:
                extremes += self._if(node)
            elif node.op_type in ("Loop", "Scan") and not node.domain:
                extremes += self._loop(node)
            elif node in self.numbers:
                sites.append(self.numbers[node])
                for op_type, values in (("ReduceMax", largest), ("ReduceMin", smallest)):
                    extreme = self._node(op_type, [node.inputs[0]], keepdims=ir.AttrInt64("keepdims", 0))
                    reshape = self._node("Reshape", [extreme.outputs[0], one.outputs[0]])
                    graph.insert_after(node, [extreme, reshape])
                    values.append(reshape.outputs[0])
        if sites:
            graph.insert_before(graph[0], one)
            vector = self._node("Concat", [*largest, *smallest], axis=ir.AttrInt64("axis", 0))
            graph.append(vector)
            extremes.append(_Extremes(vector.outputs[0], tuple(sites)))
        return extremes

    def _if(self, node: ir.Node) -> list[_Extremes]:
        branches = list(bodies(node).values())
        inner = [(branch, extremes) for branch in branches for extremes in self.graph(branch)]
        outer = []
        for branch, extremes in inner:
            for other in branches:
                other.outputs.append(extremes.value if other is branch else self._zeros(other, extremes))
            outer.append(self._output(node, extremes, extremes.loops))
        return outer

    def _zeros(self, branch: ir.Graph, extremes: _Extremes) -> ir.Value:
        zeros = np.zeros((*[1] * extremes.loops, 2 * len(extremes.sites)), np.float32)
        node = self._node("Constant", [], value=ir.AttrTensor("value", ir.tensor(zeros)))
        branch.append(node)
        return node.outputs[0]

    def _loop(self, node: ir.Node) -> list[_Extremes]:
        (body,) = bodies(node).values()
        inner = self.graph(body)
        body.outputs.extend(extremes.value for extremes in inner)
        for name in ("scan_output_axes", "scan_output_directions"):
            if name in node.attributes:
                before = node.attributes[name].as_ints()
                node.attributes[name] = ir.AttrInt64s(name, [*before, *[0] * len(inner)])
        return [self._output(node, extremes, extremes.loops + 1) for extremes in inner]

    def _output(self, node: ir.Node, extremes: _Extremes, loops: int) -> _Extremes:
        node.resize_outputs(len(node.outputs) + 1)
        return _Extremes(self._named(node.outputs[-1]), extremes.sites, loops)

    def _node(self, op_type: str, inputs: list[ir.Value | None], **attributes: ir.Attr) -> ir.Node:
        node = ir.node(op_type, inputs, attributes)
        node.name = self._named(node.outputs[0]).name
        return node

    def _named(self, value: ir.Value) -> ir.Value:
        self._count += 1
        value.name, value.dtype = f"{WATCHED}{self._count}", ir.DataType.FLOAT
        return value
