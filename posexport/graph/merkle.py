"""A digest of what an ONNX model computes: equal for models that differ in names and in the order of nodes alone.

A Merkle hash: a value is the hash of its node and its place among the node's outputs, a node that of its operator,
attributes and inputs, a call that of the function's body. A graph is its inputs and outputs with their public names and
types, and the multisets of its nodes and initializers, so that dead ones count. Documentation, metadata and shapes of
values inside a graph do not count.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    numpy_helper,
)

Scope = Mapping[str, str]


def digest(model: ModelProto) -> str:
    """Of a whole model, with the versions of its operators."""
    functions = Functions(model)
    opsets = sorted((each.domain, each.version) for each in model.opset_import)
    return hashed("model", model.ir_version, opsets, functions.graph(model.graph, {}, public=True))


def counts(model: ModelProto) -> Counter[str]:
    """How many nodes of each operator the graph and the bodies of its functions have; calls of functions are no nodes.

    The body of a function that is called twice counts twice.
    """
    functions, total = Functions(model), Counter[str]()
    left: list[NodeProto] = list(model.graph.node)
    while left:
        node = left.pop()
        function = functions.called(node)
        if function is None:
            total[f"{node.domain}::{node.op_type}" if node.domain else node.op_type] += 1
        else:
            left += function.node
        left += [inner for attribute in node.attribute for graph in subgraphs(attribute) for inner in graph.node]
    return total


def hashed(*parts: Any) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def subgraphs(attribute: AttributeProto) -> list[GraphProto]:
    return [attribute.g, *attribute.graphs] if attribute.type == AttributeProto.GRAPH else list(attribute.graphs)


def tensor(value: TensorProto) -> tuple[Any, ...]:
    """Type, sizes and bits."""
    array = numpy_helper.to_array(value)
    bits = repr(array.tolist()).encode() if array.dtype == object else array.tobytes()
    return TensorProto.DataType.Name(value.data_type), tuple(value.dims), hashlib.sha256(bits).hexdigest()[:32]


def typed(value: ValueInfoProto) -> str:
    """Element type and axes, with the names that axes have."""
    kind = value.type.tensor_type
    axes = [axis.dim_param or axis.dim_value for axis in kind.shape.dim] if kind.HasField("shape") else None
    return f"{TensorProto.DataType.Name(kind.elem_type)}{axes}"


class Functions:
    """Hashes of graphs, nodes and functions of one model. A subclass may let other contents count as the same."""

    def __init__(self, model: ModelProto) -> None:
        self._functions = {(each.domain, each.name, each.overload): each for each in model.functions}
        self._hashes: dict[tuple[str, str, str], str] = {}

    def tensor(self, value: TensorProto) -> tuple[Any, ...]:
        return tensor(value)

    def typed(self, value: ValueInfoProto) -> str:
        return typed(value)

    def integer(self, value: int) -> int:
        """Of an attribute."""
        return value

    def called(self, node: NodeProto) -> FunctionProto | None:
        return self._functions.get((node.domain, node.op_type, node.overload))

    def operator(self, node: NodeProto) -> str:
        """Domain and name; of a call the hash of the function, whatever its name."""
        function = self.called(node)
        return f"{node.domain}::{node.op_type}" if function is None else f"call {self.function(function)}"

    def function(self, function: FunctionProto) -> str:
        key = function.domain, function.name, function.overload
        if key not in self._hashes:
            scope = {name: hashed("input", index) for index, name in enumerate(function.input)}
            opsets = sorted((each.domain, each.version) for each in function.opset_import)
            attributes = sorted(function.attribute), sorted(self.attribute(a, {}) for a in function.attribute_proto)
            nodes = self.nodes(function.node, scope)
            outputs = [scope[name] for name in function.output]
            self._hashes[key] = hashed("function", opsets, attributes, len(function.input), outputs, nodes)
        return self._hashes[key]

    def graph(self, graph: GraphProto, outer: Scope, *, public: bool = False) -> str:
        """``outer``: values that a subgraph sees; ``public``: names of inputs and outputs count."""
        scope = dict(outer)
        stored = {each.name: hashed("initializer", *self.tensor(each)) for each in graph.initializer}
        scope |= stored
        inputs = []
        for index, each in enumerate(graph.input):
            # an initializer that an input may replace is its default
            said = [each.name if public else index, self.typed(each), stored.get(each.name)]
            scope[each.name] = hashed("input", *said)
            inputs.append(said)
        nodes = self.nodes(graph.node, scope)
        outputs = [[each.name if public else "", self.typed(each), scope[each.name]] for each in graph.output]
        return hashed("graph", inputs, outputs, nodes, sorted(stored.values()))

    def nodes(self, nodes: Iterable[NodeProto], scope: dict[str, str]) -> list[str]:
        """Sorted hashes of nodes, which add their outputs to ``scope``."""
        found = []
        for node in nodes:
            attributes = sorted(self.attribute(each, scope) for each in node.attribute)
            inputs = [scope[name] if name else "" for name in node.input]
            found.append(hashed("node", self.operator(node), attributes, inputs, [bool(name) for name in node.output]))
            scope.update({name: hashed(found[-1], index) for index, name in enumerate(node.output) if name})
        return sorted(found)

    def attribute(self, attribute: AttributeProto, scope: Scope) -> tuple[str, str]:
        """Its name, and its value as text."""
        if attribute.ref_attr_name:
            return attribute.name, f"@{attribute.ref_attr_name}"
        return attribute.name, repr(self._value(attribute, scope))

    def _value(self, attribute: AttributeProto, scope: Scope) -> Any:
        kinds = AttributeProto
        if attribute.type in (kinds.GRAPH, kinds.GRAPHS):
            return [self.graph(each, scope) for each in subgraphs(attribute)]
        if attribute.type in (kinds.TENSOR, kinds.TENSORS):
            return [
                self.tensor(each) for each in ([attribute.t] if attribute.type == kinds.TENSOR else attribute.tensors)
            ]
        plain = {
            kinds.FLOAT: attribute.f,
            kinds.INT: self.integer(attribute.i),
            kinds.STRING: attribute.s,
            kinds.FLOATS: list(attribute.floats),
            kinds.INTS: [self.integer(value) for value in attribute.ints],
            kinds.STRINGS: list(attribute.strings),
            kinds.TYPE_PROTO: attribute.tp.SerializeToString(deterministic=True),
        }
        return plain[attribute.type]
