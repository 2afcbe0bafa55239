"""Which layer each node of a graph belongs to, by the weights that it depends on.

A node belongs to the highest layer among the weights that it is computed from: to layer 0, the shared part, without any
(embeddings, masks, rotations). A layer's region has the nodes that its weights need; the region after it has the others
(a residual sum, the next layer's norm until its weight), and after the last layer the final norm and head.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from onnx import NodeProto

from posexport.proof.full_model.file import File
from posexport.proof.full_model.records import NotComparableError, Stacks
from posexport.proof.full_model.weights import Weights

_NUMBER = re.compile(r"(?<=[._])\d+(?=[._]|$)")
SHARED = 0


@dataclass(frozen=True)
class Region:
    """``after``: the part between a layer and the next."""

    stack: str
    layer: int
    after: bool


@dataclass
class Regions:
    """Of one graph.

    Attributes:
        order: the layers in the order of execution; level 1 is the first.
        node: each node's region: 0 is the shared part, 2 k a layer's, 2 k + 1 what is between it and the next one.
        states: inputs that belong to a layer (a KV cache's), with their level.
    """

    order: list[tuple[str, int]]
    node: list[int] = field(default_factory=list)
    states: dict[str, int] = field(default_factory=dict)

    def of(self, number: int) -> Region:
        stack, layer = self.order[number // 2 - 1]
        return Region(stack, layer, bool(number % 2))

    def level(self, stack: str, layer: int) -> int:
        return self.order.index((stack, layer)) + 1


def family(name: str) -> str:
    """The name of an input or output without a layer's number."""
    return _NUMBER.sub("#", name, count=1)


def number_of(name: str) -> int:
    found = _NUMBER.search(name)
    return int(found.group()) if found else -1


def regions(file: File, weights: Weights, stacks: Stacks) -> Regions:
    """The region of every node.

    Raises:
        NotComparableError: stacks depend on each other in turn.
    """
    nodes = file.nodes
    reads = [file.reads(node) for node in nodes]
    readers: dict[str, int] = {}
    for names in reads:
        for name in set(names):
            readers[name] = readers.get(name, 0) + 1
    known = {name: _layers(weights, name, readers[name]) for name in readers if name in weights}
    used = {stack for places in known.values() for stack, _ in places}
    ordered = _ordered(nodes, reads, known, {stack: stacks[stack] for stack in stacks if stack in used})
    found = Regions([(stack, layer) for stack in ordered for layer in range(len(stacks[stack].kinds))])
    levels = {place: level for level, place in enumerate(found.order, 1)}
    own = [
        max((min(levels[at] for at in known[name]) for name in names if known.get(name)), default=0) for names in reads
    ]
    inputs = {value.name for value in file.model.graph.input if _NUMBER.search(value.name)}
    found.states = _states(nodes, reads, _levels(nodes, reads, own, {}), inputs)
    level = _levels(nodes, reads, own, found.states)
    needed = _needed(nodes, reads, own, level, found.states)
    found.node = [0 if not at else 2 * at + (not need) for at, need in zip(level, needed, strict=True)]
    return found


def _layers(weights: Weights, name: str, readers: int) -> set[tuple[str, int]]:
    meaning = weights[name]
    if meaning.digest and not (meaning.named and readers == 1):  # the same number everywhere: any layer's
        return set()
    return meaning.layers


def _ordered(
    nodes: Sequence[NodeProto],
    reads: Sequence[Sequence[str]],
    known: Mapping[str, set[tuple[str, int]]],
    stacks: Stacks,
) -> list[str]:
    above: dict[str, set[str]] = {}
    before: dict[str, set[str]] = {stack: set() for stack in stacks}
    for node, names in zip(nodes, reads, strict=True):
        here = {stack for name in names for stack, _ in known.get(name, ())}
        inherited = {stack for name in names for stack in above.get(name, ())}
        for stack in here:
            before[stack] |= inherited - {stack}
        for output in node.output:
            above[output] = here | inherited
    order: list[str] = []
    while len(order) < len(stacks):
        free = [stack for stack in stacks if stack not in order and before[stack] <= set(order)]
        if not free:
            raise NotComparableError(f"layers of {' and '.join(before)} run in turn")
        order.append(free[0])
    return order


def _levels(
    nodes: Sequence[NodeProto], reads: Sequence[Sequence[str]], own: Sequence[int], states: Mapping[str, int]
) -> list[int]:
    values: dict[str, int] = dict(states)
    found = []
    for node, names, least in zip(nodes, reads, own, strict=True):
        found.append(max([least, *(values.get(name, 0) for name in names)]))
        values.update(dict.fromkeys(node.output, found[-1]))
    return found


def _states(
    nodes: Sequence[NodeProto], reads: Sequence[Sequence[str]], levels: Sequence[int], inputs: Iterable[str]
) -> dict[str, int]:
    """The level of each numbered input: that of the first layer that its elements reach."""
    reached: dict[str, set[str]] = {name: {name} for name in inputs}
    first: dict[str, int] = {}
    for node, names, level in zip(nodes, reads, levels, strict=True):
        behind = {state for name in names for state in reached.get(name, ())}
        if level:
            for state in behind:
                first[state] = min(level, first.get(state, level))
            continue  # what is computed from a layer's values is that layer's
        for output in node.output:
            reached[output] = behind
    return first


def _needed(
    nodes: Sequence[NodeProto],
    reads: Sequence[Sequence[str]],
    own: Sequence[int],
    level: Sequence[int],
    states: Mapping[str, int],
) -> list[bool]:
    """Whether a weight or a state of a node's layer needs the node, or is read by it."""
    needed = [
        at > 0 and (least == at or any(states.get(name) == at for name in names))
        for at, least, names in zip(level, own, reads, strict=True)
    ]
    producer = {output: place for place, node in enumerate(nodes) for output in node.output}
    for place in reversed(range(len(nodes))):
        if needed[place]:
            for name in reads[place]:
                before = producer.get(name)
                if before is not None and level[before] == level[place]:
                    needed[before] = True
    return needed
