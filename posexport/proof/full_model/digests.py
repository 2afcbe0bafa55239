"""Hashes of what each layer of a graph computes, whatever its values and nodes are called.

A node is hashed by its operator, attributes and inputs (`posexport.graph.merkle`). A weight is its role in its layer
and how it is stored. A value of another layer is told by the last few nodes that compute it there: so few that the
first layer, which reads the embeddings, is like the others, and so many that all values that other layers read differ.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto

from posexport.graph.merkle import Functions, hashed
from posexport.proof.full_model.file import File, outer_names
from posexport.proof.full_model.records import NotComparableError, Stacks
from posexport.proof.full_model.regions import SHARED, Regions, family, number_of, regions
from posexport.proof.full_model.weights import Meaning, Weights

#: how many regions before its own a node may read: what is between two layers reads what was between those before it
_BACK = 3
#: the neighbour of the first and of the last layer
_NONE = ""
Key = tuple[str, ...]


@dataclass
class Digest:
    """Of one region.

    Attributes:
        nodes: hashes of nodes, by their number in the graph.
        outputs: hashes of the graph's outputs (and of the shared part's inputs) by name.
        shared: values of the shared part that nodes read.
    """

    key: Key
    nodes: dict[int, str] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)
    shared: set[str] = field(default_factory=set)

    @property
    def contents(self) -> set[str]:
        """Nodes that compute the same count once: which sizes are read more than once depends on names."""
        return {*self.nodes.values(), *self.outputs.values()}


class _Functions(Functions):
    """With the vocabulary of the reduced model."""

    def __init__(self, model: ModelProto, weights: Weights) -> None:
        super().__init__(model)
        self._weights = weights

    def tensor(self, value: TensorProto) -> tuple[Any, ...]:
        return self._weights.contents(value)

    def typed(self, value: ValueInfoProto) -> str:
        kind = value.type.tensor_type
        axes = [axis.dim_param or self._weights.size(axis.dim_value) for axis in kind.shape.dim]
        return f"{kind.elem_type}{axes}"

    def integer(self, value: int) -> int:
        return self._weights.size(value)


class Digests:
    """Of all regions of one graph, after `compute`."""

    def __init__(self, file: File, weights: Weights, stacks: Stacks) -> None:
        self.file, self.weights, self._stacks = file, weights, stacks
        self.regions: Regions = regions(file, weights, stacks)
        self.by_region: dict[int, Digest] = {}
        self._functions = _Functions(file.model, weights)
        self._inputs = {value.name for value in file.model.graph.input}
        self._region = {
            output: region for node, region in zip(file.nodes, self.regions.node, strict=True) for output in node.output
        }
        self._expected: Mapping[Key, set[str]] = {}
        self._chosen: dict[tuple[int, str], str] = {}

    def compute(self, depth: int, expected: Mapping[Key, set[str]]) -> bool:
        """Whether values of other layers are told apart by the last ``depth`` nodes that compute them.

        ``expected``: hashes of the reduced model's nodes, which decide between weights that have the same numbers.
        """
        self._expected, self._chosen = expected, {}
        self.by_region = {
            number: Digest(self._key(number)) for number in (SHARED, *range(2, 2 * len(self.regions.order) + 2))
        }
        first = self._first(depth)
        return self._told_apart(first, self._second(first))

    def like_others(self, digest: Digest) -> bool:
        """Whether all that it reads of the shared part is read by several layers, as embeddings are not."""
        return all(
            len({number // 2 for number, each in self.by_region.items() if name in each.shared}) > 1
            for name in digest.shared
        )

    def _key(self, number: int) -> Key:
        """What is alike in regions of one kind: the kinds of the layer and its neighbours."""
        if number == SHARED:
            return ("shared",)
        region = self.regions.of(number)
        kinds = [_NONE, *self._stacks[region.stack].kinds, _NONE]
        before, own, behind = kinds[region.layer : region.layer + 3]
        return (region.stack, own, "after", behind, before) if region.after else (region.stack, own, before)

    def _first(self, depth: int) -> dict[str, str]:
        """What computes every value: the last ``depth`` nodes in its region."""
        values: dict[str, str] = {}
        for _ in range(depth):
            before, values = values, {}
            for node, number in zip(self.file.nodes, self.regions.node, strict=True):
                digest = self._hash(node, {name: self._beneath(name, number, before) for name in self._names(node)})
                values.update({name: hashed(digest, index) for index, name in enumerate(node.output) if name})
        return values

    def _beneath(self, name: str, number: int, before: Mapping[str, str]) -> str:
        if name in self.weights:
            return "weight" if self._open(name, number) else self._leaf(name, number)
        return before.get(name, "value") if self._region.get(name) == number else "value"

    def _names(self, node: NodeProto) -> list[str]:
        return [*(name for name in node.input if name), *outer_names(node)]

    def _second(self, first: Mapping[str, str]) -> dict[str, str]:
        values: dict[str, str] = {}
        for place, node in enumerate(self.file.nodes):
            number = self.regions.node[place]

            def scope(name: str, number: int = number) -> str:
                return self._reference(name, number, values, first)

            digest = self._node(place, node, scope)
            self.by_region[number].nodes[place] = digest
            values.update({name: hashed(digest, index) for index, name in enumerate(node.output) if name})
        for output in self.file.model.graph.output:
            number = self._region.get(output.name, SHARED)
            said = [
                family(output.name),
                self._functions.typed(output),
                self._reference(output.name, number, values, first),
            ]
            if number_of(output.name) < 0 and number != SHARED:  # where it comes from, counted from the end
                stack = self.regions.of(number).stack
                end = 2 * self.regions.level(stack, len(self._stacks[stack].kinds) - 1)
                said[-1] = hashed(stack, end - number, first[output.name])
                number = SHARED
            self.by_region[number].outputs[output.name] = hashed("output", *said)
        for each in self.file.model.graph.input:
            if each.name not in self.regions.states:
                self.by_region[SHARED].outputs[each.name] = hashed("input", each.name, self._functions.typed(each))
        return values

    def _reference(self, name: str, number: int, values: Mapping[str, str], first: Mapping[str, str]) -> str:
        region = self._region.get(name, SHARED)
        if name not in values:
            return self._leaf(name, number) or hashed("missing", name)
        if region in (number, SHARED):
            if number != SHARED and region == SHARED:
                self.by_region[number].shared.add(name)
            return values[name]
        here, there = self.regions.of(number), self.regions.of(region)
        if here.stack == there.stack and number - region <= _BACK:
            return hashed("layer before", number - region, first[name])
        ends = there.after and there.layer == len(self._stacks[there.stack].kinds) - 1
        if here.stack != there.stack and ends:
            return hashed("end of", there.stack, first[name])
        raise NotComparableError(
            f"layer {here.layer} of {here.stack} reads {name} of layer {there.layer} of {there.stack}: the layers are "
            "no chain"
        )

    def _leaf(self, name: str, number: int) -> str:
        """Of a constant or an input of the graph; empty for a node's output."""
        if (number, name) in self._chosen:
            return self._chosen[number, name]
        if name in self.weights:
            return self._alternatives(self.weights[name], number)[0]
        if name in self.regions.states:
            # sizes are read of any layer's
            offset = self.regions.states[name] - number // 2 if number else 0
            return hashed("state", family(name), offset)
        return hashed("input", name) if name in self._inputs else ""

    def _alternatives(self, meaning: Meaning, number: int) -> list[str]:
        """What a tensor may be to a node of this region, its own layer's weights first."""
        of_weights = []
        for pieces in meaning.places:
            away, said = 0, []
            for place, form in pieces:
                offset = self.regions.level(place.stack, place.layer) - number // 2 if place.layer >= 0 else 0
                away = max(away, abs(offset))
                said.append((place.stack, place.role, offset, form))
            of_weights.append((away, hashed("weight", *said)))
        literal = [hashed("constant", meaning.digest)] if meaning.digest else []
        of_weights.sort()
        near = [digest for away, digest in of_weights if away == 0]
        return [*near, *literal, *(digest for away, digest in of_weights if away)]

    def _node(self, place: int, node: NodeProto, scope: Callable[[str], str]) -> str:
        """Its hash; where tensors have alternatives, with those that give a hash that is expected."""
        number = self.regions.node[place]
        if axis := self.file.size_of_axis(node):
            return hashed("size", axis)
        names = self.file.reads(node)
        sizes = self.file.sizes_read(node)
        digest = self._hash(node, {name: scope(name) for name in names} | sizes)
        several = [name for name in dict.fromkeys(names) if self._open(name, number)]
        expected = self._expected.get(self.by_region[number].key, set())
        if not several or digest in expected:
            return digest
        options: list[dict[str, str]] = [{}]
        for name in several:
            every = self._alternatives(self.weights[name], number)
            options = [{**option, name: each} for option in options[:_MOST] for each in every]
        for option in options:
            digest = self._hash(node, {name: option.get(name) or scope(name) for name in names} | sizes)
            if digest in expected:
                self._chosen |= {(number, name): each for name, each in option.items()}
                return digest
        return self._hash(node, {name: scope(name) for name in names} | sizes)

    def _open(self, name: str, number: int) -> bool:
        if (number, name) in self._chosen or name not in self.weights:
            return False
        meaning = self.weights[name]
        return len(meaning.places) + bool(meaning.digest) > 1

    def _hash(self, node: NodeProto, scope: Mapping[str, str]) -> str:
        attributes = sorted(self._functions.attribute(each, scope) for each in node.attribute)
        inputs = [scope[name] if name else "" for name in node.input]
        outputs = [bool(name) for name in node.output]
        return hashed("node", self._functions.operator(node), attributes, inputs, outputs)

    def _told_apart(self, first: Mapping[str, str], second: Mapping[str, str]) -> bool:
        known: dict[tuple[int, str], str] = {}
        for place, node in enumerate(self.file.nodes):
            for name in self.file.reads(node):
                region = self._region.get(name, SHARED)
                if region in (SHARED, self.regions.node[place]):
                    continue
                if known.setdefault((region, first[name]), second[name]) != second[name]:
                    return False
        return True


#: alternatives of a node's tensors that are tried
_MOST = 256
