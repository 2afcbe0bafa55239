"""Which layer each node of a trace belongs to, and whether two layers have the same nodes."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from torch import nn

from posexport.graph.queries import FOLDED_FROM, names_of
from posexport.proof.full_model.regions import number_of
from posexport.proof.reduced.reduction import Reduction

#: elements of weights that the exporter looks at: it folds them, and keeps equal ones once
SMALL = 8192


class UnlikeError(Exception):
    """The nodes of the traced layers do not say what the other layers' are."""


def names_by_parameter(module: nn.Module) -> dict[nn.Parameter, list[str]]:
    """All names of each parameter; the exporter takes the last."""
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    return names


class Levels:
    """Of the nodes of a graph.

    Layers of all stacks have the levels 1, 2, ... in the order in which they run. A node's level is the highest one
    among the weights and the states that it is computed from: 0 is shared by all layers.
    """

    def __init__(self, few: Reduction, graph: ir.Graph) -> None:
        self._stacks = {path: len(stack.kept) for path, stack in few.stacks.items()}
        self._alone: dict[str, nn.Parameter] = {}
        for parameter, names in names_by_parameter(few.source.module).items():
            places = {self._layer_of(name) for name in names}
            if len(places) == 1 and None not in places:
                self._alone |= dict.fromkeys(names, parameter)
        #: the parameters that initializers are, and what was made of them
        self.parameter: dict[ir.Value, tuple[str, str]] = {}
        #: the layers that they belong to
        self.place: dict[ir.Value, tuple[str, int]] = {}
        for value in graph.initializers.values():
            self._add_initializer(value)
        self._inputs = set(graph.inputs)
        self.of_layer: dict[tuple[str, int], int] = {}
        for node in graph:
            if any(attr.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for attr in node.attributes.values()):
                raise UnlikeError
            for path, _ in self._places(node):
                if (path, 0) not in self.of_layer:
                    first = len(self.of_layer) + 1
                    self.of_layer |= {(path, number): first + number for number in range(self._stacks[path])}
        numbered = {value.name for value in graph.inputs if number_of(value.name or "") >= 0}
        self.of: dict[ir.Value, int] = {}
        self._walk(graph)
        self.of = self._first_read(graph, [value for value in graph.inputs if value.name in numbered])
        self._walk(graph)
        self.nodes: dict[int, list[ir.Node]] = {}
        for node in graph:
            self.nodes.setdefault(self.of[node.outputs[0]], []).append(node)

    def _add_initializer(self, value: ir.Value) -> None:
        of = [name for name in names_of(value) if name in self._alone]
        if not of:
            return
        form = _form(value.const_value, self._alone[of[0]]) if FOLDED_FROM in value.metadata_props else "as it is"
        if len(of) > 1 or not form:
            raise UnlikeError  # computed from a layer's weights
        place = self._layer_of(of[0])
        assert place is not None
        self.parameter[value], self.place[value] = (of[0], form), place

    def _layer_of(self, name: str) -> tuple[str, int] | None:
        for path in self._stacks:
            number, _, _ = name.removeprefix(f"{path}.").partition(".")
            if name.startswith(f"{path}.") and number.isdecimal():
                return path, int(number)
        return None

    def _read(self, node: ir.Node) -> Iterator[ir.Value]:
        """The values that a node reads, without inputs of which it reads the sizes alone."""
        of_input = node.op_type == "Shape" and node.inputs[0] in self._inputs
        return (value for value in node.inputs if value is not None and not of_input)

    def _places(self, node: ir.Node) -> list[tuple[str, int]]:
        places = (self.place.get(value) for value in self._read(node))
        return [place for place in places if place is not None]

    def _walk(self, graph: ir.Graph) -> None:
        """Assign the levels of values, from the levels of states."""
        for node in graph:
            of_weights = [self.of_layer[place] for place in self._places(node)]
            level = max([*of_weights, *(self.of.get(value, 0) for value in self._read(node))], default=0)
            if of_weights and level > min(of_weights):  # a weight after a later layer's
                raise UnlikeError
            self.of |= dict.fromkeys(node.outputs, level)

    def _first_read(self, graph: ir.Graph, states: Iterable[ir.Value]) -> dict[ir.Value, int]:
        """The level of the first layer that the elements of each state reach."""
        reached = {state: {state} for state in states}
        first: dict[ir.Value, int] = {}
        for node in graph:
            behind = {state for value in self._read(node) for state in reached.get(value, ())}
            if level := self.of[node.outputs[0]]:
                first |= {state: min(level, first.get(state, level)) for state in behind}
            else:
                reached |= dict.fromkeys(node.outputs, behind)
        return first

    def counterparts(self, stack: str, one: int, other: int) -> dict[ir.Value, ir.Value]:
        """Values of the traced layer ``one`` by values of ``other``; UnlikeError unless both have the same nodes."""
        ones, other_nodes = (self.nodes.get(self.of_layer[stack, number], []) for number in (one, other))
        same: dict[ir.Value, ir.Value] = {}
        if len(ones) != len(other_nodes):
            raise UnlikeError
        for a, b in zip(ones, other_nodes, strict=True):
            if _operation(a) != _operation(b):
                raise UnlikeError
            for read, by_other in zip(a.inputs, b.inputs, strict=True):
                if not self._stand_alike(read, by_other, same):
                    raise UnlikeError
            same |= dict(zip(b.outputs, a.outputs, strict=True))
        return same

    def _stand_alike(self, one: ir.Value | None, other: ir.Value | None, same: Mapping[ir.Value, ir.Value]) -> bool:
        """Whether a node of a layer reads ``one`` where the other layer's reads ``other``."""
        if one is None or other is None:
            return one is other
        if other in same:
            return same[other] is one
        if self.place.get(one) is not None or self.place.get(other) is not None:
            return self._role(one) == self._role(other)
        if one.const_value is not None and other.const_value is not None:
            return one is other or np.array_equal(one.const_value.numpy(), other.const_value.numpy())
        return True  # computed by layers before

    def _role(self, weight: ir.Value) -> tuple[str, str]:
        """The name of a layer's weight without the layer, and what was made of it."""
        name, form = self.parameter.get(weight, ("", ""))
        stack, number = self.place.get(weight, ("", 0))
        return name.removeprefix(f"{stack}.{number}"), form


#: what the exporter makes of a parameter before the graph is run
FORMS: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
    "as it is": lambda array: array,
    "transposed": lambda array: array.T,
    "plus one": lambda array: array + 1,  # weights of Gemma's norms
    # of Mamba's layers: the decay of states, and what a token adds for each head
    "minus exp": lambda array: -np.exp(array),
    "a column": lambda array: array[..., None],
}


def _form(tensor: ir.TensorProtocol | None, parameter: nn.Parameter) -> str:
    """The name in `FORMS` of what a tensor is of ``parameter``; empty: none."""
    array, original = None if tensor is None else tensor.numpy(), parameter.detach().numpy()
    if array is None:
        return ""
    transposed = original.T
    if original.ndim == 2 and (array.ctypes.data, array.strides) == (transposed.ctypes.data, transposed.strides):
        return "transposed" if array.shape == transposed.shape else ""
    if original.size > SMALL:
        return ""
    # also without an axis and with it again, as a convolution's weight
    forms = ("as it is", "plus one", "minus exp", "a column")
    return next((form for form in forms if np.array_equal(array, FORMS[form](original))), "")


def _operation(node: ir.Node) -> tuple[Any, ...]:
    """What two nodes must have in common to compute the same of equal inputs."""
    attributes = sorted((name, str(attr.value)) for name, attr in node.attributes.items())
    return node.domain, node.op_type, node.overload, len(node.inputs), len(node.outputs), attributes
