"""How large values are before they are rounded: a copy that rounds to float16 also gives the extremes of each of them.

A place of rounding is a Cast to float16, of which an emulated copy has no others. The largest and the smallest numbers
of all places of a graph go into one vector, which leaves every body around it: of the branch of an If that was not
taken it is 0, of a Loop or a Scan there is one a turn.
"""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from posexport.graph.bodies import bodies
from posexport.precision.emulate.flows import Flows
from posexport.precision.emulate.layers import layer_of

#: begins the names of what is added
WATCHED = "posexport_range/"
_HALF = ir.DataType.FLOAT16


@dataclass(frozen=True)
class Site:
    """A value that is rounded.

    Attributes:
        node: that computes it.
        layer: as of `posexport.precision.emulate.layers`.
        masked: all that becomes of it is added to scores of a softmax, where -inf does no harm.
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
    """Add outputs to an emulated copy, in place: its sites in the order they are computed, and what the outputs say.

    What the graph is fed is no site.
    """
    places = [node for node in model.graph.all_nodes() if _rounds(node)]  # in the order in which they run
    numbers = {down: number for number, down in enumerate(places)}
    flows = Flows(model.graph)
    rounded = {down.outputs[0]: number for down, number in numbers.items()}
    sites = [_site(down, flows, rounded) for down in places]
    vectors = []
    for given in _Writer(numbers).graph(model.graph):
        model.graph.outputs.append(given.value)
        vectors.append(Vector(given.value.name or "", given.sites))
    return sites, vectors


def _rounds(node: ir.Node) -> bool:
    if node.op_type != "Cast" or node.domain or node.attributes.get_int("to", 0) != _HALF:
        return False
    given = node.inputs[0]
    return given is not None and given.producer() is not None


def _site(down: ir.Node, flows: Flows, rounded: dict[ir.Value, int]) -> Site:
    exact = down.inputs[0]
    assert exact is not None
    node = exact.producer()
    assert node is not None
    before, infinite = flows.sources(exact, rounded)
    return Site(
        node=node.name or (exact.name or "").removesuffix("/exact"),
        op_type=node.op_type,
        layer=layer_of(node),
        masked=flows.leads_to_softmax(down.outputs[0]),
        before=before - {rounded[down.outputs[0]]},
        infinite=infinite,
    )


@dataclass(frozen=True)
class _Given:
    """A vector in some graph; ``loops``: how many axes of turns are before its own."""

    value: ir.Value
    sites: tuple[int, ...]
    loops: int = 0


@dataclass
class _Writer:
    """Adds nodes and outputs; names are numbered, so that none occurs twice in a file."""

    numbers: dict[ir.Node, int]
    _count: int = 0

    def graph(self, graph: ir.Graph) -> list[_Given]:
        """The vectors of a graph and of all bodies in it, as values of this graph."""
        given: list[_Given] = []
        sites: list[int] = []
        largest: list[ir.Value] = []
        smallest: list[ir.Value] = []
        one = self._node("Constant", [], value=ir.AttrTensor("value", ir.tensor(np.ones(1, np.int64))))
        one.outputs[0].dtype = ir.DataType.INT64
        for node in list(graph):
            if node.op_type == "If" and not node.domain:
                given += self._if(node)
            elif node.op_type in ("Loop", "Scan") and not node.domain:
                given += self._loop(node)
            elif node in self.numbers:
                sites.append(self.numbers[node])
                for op_type, found in (("ReduceMax", largest), ("ReduceMin", smallest)):
                    extreme = self._node(op_type, [node.inputs[0]], keepdims=ir.AttrInt64("keepdims", 0))
                    reshape = self._node("Reshape", [extreme.outputs[0], one.outputs[0]])
                    graph.insert_after(node, [extreme, reshape])
                    found.append(reshape.outputs[0])
        if sites:
            graph.insert_before(graph[0], one)
            vector = self._node("Concat", [*largest, *smallest], axis=ir.AttrInt64("axis", 0))
            graph.append(vector)
            given.append(_Given(vector.outputs[0], tuple(sites)))
        return given

    def _if(self, node: ir.Node) -> list[_Given]:
        branches = list(bodies(node).values())
        inner = [(branch, given) for branch in branches for given in self.graph(branch)]
        outer = []
        for branch, given in inner:
            for other in branches:
                other.outputs.append(given.value if other is branch else self._zeros(other, given))
            outer.append(self._output(node, given, given.loops))
        return outer

    def _zeros(self, branch: ir.Graph, given: _Given) -> ir.Value:
        zeros = np.zeros((*[1] * given.loops, 2 * len(given.sites)), np.float32)
        node = self._node("Constant", [], value=ir.AttrTensor("value", ir.tensor(zeros)))
        branch.append(node)
        return node.outputs[0]

    def _loop(self, node: ir.Node) -> list[_Given]:
        (body,) = bodies(node).values()
        inner = self.graph(body)
        body.outputs.extend(given.value for given in inner)
        for name in ("scan_output_axes", "scan_output_directions"):
            if name in node.attributes:
                before = node.attributes[name].as_ints()
                node.attributes[name] = ir.AttrInt64s(name, [*before, *[0] * len(inner)])
        return [self._output(node, given, given.loops + 1) for given in inner]

    def _output(self, node: ir.Node, given: _Given, loops: int) -> _Given:
        node.resize_outputs(len(node.outputs) + 1)
        return _Given(self._named(node.outputs[-1]), given.sites, loops)

    def _node(self, op_type: str, inputs: list[ir.Value | None], **attributes: ir.Attr) -> ir.Node:
        node = ir.node(op_type, inputs, attributes)
        node.name = self._named(node.outputs[0]).name
        return node

    def _named(self, value: ir.Value) -> ir.Value:
        self._count += 1
        value.name, value.dtype = f"{WATCHED}{self._count}", ir.DataType.FLOAT
        return value
