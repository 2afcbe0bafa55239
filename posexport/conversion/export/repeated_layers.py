"""The trace of a model with many equal layers: a few of them are traced, and their nodes repeated for the others.

Tracing takes a second or two a layer and is most of what a conversion costs, though layers of one kind differ in their
weights alone. Every pair of kinds that are adjacent in the model is traced twice, so that what a layer reads of the one
before it can be told: two traced layers in front of equal ones have the same nodes, and a value of the one stands where
the value of the other does. A model for which anything of this does not hold is traced as a whole; a proof compares the
graph with the definition either way.
"""

import contextlib
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from numpy.typing import NDArray
from onnx_ir.passes.common import DeduplicateInitializersPass
from torch import nn

from posexport.conversion.export import trace
from posexport.graph.queries import FOLDED_FROM, names_of
from posexport.proof.full_model.records import Stack
from posexport.proof.full_model.regions import family, number_of
from posexport.proof.reduced.reduction import LARGE, Reduction, reduction_of, weights_of
from posexport.sources.source import Source

#: elements of weights that the exporter looks at, and what tells one from the next
_SMALL, _STEP = 8192, 2.0**-10
#: layers less to trace that are worth it
_SAVED = 2


class UnlikeError(Exception):
    """The nodes of the traced layers do not say what the other layers' are."""


def few_layers(source: Source) -> dict[str, Reduction]:
    """By the file of each of its graphs: the model with the layers that are traced; empty: all are."""
    few = reduction_of(source, texts=True, pairs=2) if weights_of(source) >= LARGE else ""
    if isinstance(few, str) or few.layers - few.kept < _SAVED:
        return {}
    traced = few.source.graphs
    lists = {source.module.get_submodule(path): stack for path, stack in few.stacks.items()}
    return {
        file: replace(
            few,
            full=graph,
            source=traced[file],
            stacks={path: lists[part] for path, part in graph.module.named_modules() if part in lists},
        )
        for file, graph in source.graphs.items()
        if file in traced
    }


def trace_by_layers(source: Source, opset: int, few: Reduction | None) -> ir.Model:
    """The graph of `trace.trace`, of a few layers where they say what all others are.

    Raises:
        NotTracedError, PosexportError: as `trace.trace`.
    """
    if few is not None and few.stacks:
        with contextlib.suppress(UnlikeError):
            return repeated(few, opset)
    return trace.trace(source, opset)


@dataclass
class _Layer:
    """A layer of the full model; ``traced``: the one whose nodes it repeats; ``values``: its own by that one's."""

    stack: str
    number: int
    traced: int
    values: dict[ir.Value, ir.Value] = field(default_factory=dict)


def repeated(few: Reduction, opset: int) -> ir.Model:
    """The full model's graph from the trace of ``few``.

    Raises:
        UnlikeError: it does not say what the other layers are.
    """
    _tell_apart(few)
    model = trace.trace(few.source, opset)
    levels = _Levels(few, model.graph)
    writer = _Writer(few, model, levels)
    for path in dict.fromkeys(stack for stack, _ in levels.of_layer):
        before = None
        for number, traced in enumerate(_chosen(few.stacks[path])):
            layer = _Layer(path, number, traced)
            writer.add(layer, before)
            before = layer
    full = writer.finished()
    DeduplicateInitializersPass()(full)  # the exporter's own last step
    return full


def _names(module: nn.Module) -> dict[nn.Parameter, list[str]]:
    """All names of each parameter; the exporter takes the last."""
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    return names


def _tell_apart(few: Reduction) -> None:
    """Give small weights of the traced layers other numbers, all different, in place.

    The exporter keeps equal ones once: norms that training left alone, or the layers of a seeded model.
    """
    module = few.source.module
    alone = ((names[0], p) for p, names in _names(module).items() if len(names) == 1 and p.numel() <= _SMALL)
    for number, (name, parameter) in enumerate(alone, 1):
        if any(name.startswith(f"{path}.") for path in few.stacks):
            owner, _, attribute = name.rpartition(".")
            other = nn.Parameter(torch.full_like(parameter, 1 + number * _STEP), requires_grad=False)
            setattr(module.get_submodule(owner), attribute, other)


def _chosen(stack: Stack) -> Sequence[int]:
    """A traced layer for each of a stack's: the next one, or one that follows layers of the same kinds."""
    kinds, last = stack.reduced.kinds, len(stack.kept) - 1
    paths, seen = deque([[0]]), {(0, 0)}
    while paths:
        chosen = paths.popleft()
        number, at = len(chosen), chosen[-1]
        if number == len(stack.kinds):
            return chosen
        is_last = number == len(stack.kinds) - 1
        for traced in range(1, last + 1):
            alike = at < last and (kinds[traced - 1], kinds[traced]) == (kinds[at], kinds[at + 1])
            fits = kinds[traced] == stack.kinds[number] and (traced == last) == is_last and alike
            if fits and (number, traced) not in seen:
                seen.add((number, traced))
                paths.append([*chosen, traced])
    raise UnlikeError


class _Levels:
    """Which layer each node of a graph belongs to.

    Layers of all stacks have the levels 1, 2, ... in the order in which they run. A node's level is the highest one
    among the weights and the states that it is computed from: 0 is shared by all layers.
    """

    def __init__(self, few: Reduction, graph: ir.Graph) -> None:
        self._stacks = {path: len(stack.kept) for path, stack in few.stacks.items()}
        self._alone: dict[str, nn.Parameter] = {}
        for parameter, names in _names(few.source.module).items():
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
        """The values that a node reads, but for inputs whose sizes alone it reads."""
        of_input = node.op_type == "Shape" and node.inputs[0] in self._inputs
        return (value for value in node.inputs if value is not None and not of_input)

    def _places(self, node: ir.Node) -> list[tuple[str, int]]:
        places = (self.place.get(value) for value in self._read(node))
        return [place for place in places if place is not None]

    def _walk(self, graph: ir.Graph) -> None:
        """Assign the levels of values, from those of states."""
        for node in graph:
            own = [self.of_layer[place] for place in self._places(node)]
            level = max([*own, *(self.of.get(value, 0) for value in self._read(node))], default=0)
            if own and level > min(own):  # a weight behind a later layer's
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

    def alike(self, stack: str, one: int, other: int) -> dict[ir.Value, ir.Value]:
        """Values of the traced layer ``one`` by those of ``other``, whose nodes must be the same."""
        ones, others = (self.nodes.get(self.of_layer[stack, number], []) for number in (one, other))
        same: dict[ir.Value, ir.Value] = {}
        if len(ones) != len(others):
            raise UnlikeError
        for a, b in zip(ones, others, strict=True):
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
_FORMS: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
    "as it is": lambda array: array,
    "transposed": lambda array: array.T,
    "plus one": lambda array: array + 1,  # weights of Gemma's norms
}


def _form(tensor: ir.TensorProtocol | None, parameter: nn.Parameter) -> str:
    """Which of `_FORMS` of ``parameter`` a tensor is; empty: none."""
    array, original = None if tensor is None else tensor.numpy(), parameter.detach().numpy()
    if array is None:
        return ""
    transposed = original.T
    if original.ndim == 2 and (array.ctypes.data, array.strides) == (transposed.ctypes.data, transposed.strides):
        return "transposed" if array.shape == transposed.shape else ""
    return "plus one" if original.size <= _SMALL and np.array_equal(array, original + 1) else ""


def _operation(node: ir.Node) -> tuple[Any, ...]:
    """What two nodes must have in common to compute the same of equal inputs."""
    attributes = sorted((name, str(attr.value)) for name, attr in node.attributes.items())
    return node.domain, node.op_type, node.overload, len(node.inputs), len(node.outputs), attributes


class _Writer:
    """Writes the full model's graph, layer by layer."""

    def __init__(self, few: Reduction, model: ir.Model, levels: _Levels) -> None:
        self._few, self._model, self._levels = few, model, levels
        names = _names(few.full.module)
        self._parameters = {name: parameter for parameter, each in names.items() for name in each}
        self._traced_parameters = dict(few.source.module.named_parameters(remove_duplicate=False))
        #: of parameters that several layers share, or none has: the name that the full model's trace gives them
        last = {name: names[p][-1] for name, p in self._traced_parameters.items() if p in names}
        #: names of inputs and outputs that no layer has taken, by what they are but for their number
        self._free: dict[str, deque[str]] = {}
        specs = {spec.name: spec for spec in (*few.full.inputs, *few.full.outputs)}
        for name in sorted(specs, key=number_of):
            self._free.setdefault(family(name), deque()).append(name)
        self._named: dict[str, ir.Value] = {}
        self._nodes: list[ir.Node] = []
        self._initializers: list[ir.Value] = []
        self._used = {value.name for node in model.graph for value in node.outputs}
        #: what there is once, by the traced values
        self._once: dict[ir.Value, ir.Value] = {}
        for value in model.graph.inputs:
            name = self._free[family(value.name or "")][0]
            for same in self._free[family(value.name or "")]:
                if same not in self._named:
                    self._named[same] = _copied(value, same)
            # the size of a state may be read before its layer
            self._once[value] = self._named[name] if levels.of.get(value) else self._named[self._taken(value)]
        for value in model.graph.initializers.values():
            if value not in levels.place and value not in self._once:
                self._once[value] = self._initializer(
                    value, last.get(str(value.name), str(value.name)), value.const_value
                )
        self._write(0, self._once, None)

    def add(self, layer: _Layer, before: _Layer | None) -> None:
        """Write the nodes of ``layer``, which follows ``before`` in its stack."""
        stack, level = self._few.stacks[layer.stack], self._levels.of_layer[layer.stack, layer.traced]
        values = dict(self._once)
        if before is not None:
            as_traced = {}
            if before.traced != layer.traced - 1:
                as_traced = self._levels.alike(layer.stack, before.traced, layer.traced - 1)
            values |= before.values if not as_traced else {v: before.values[same] for v, same in as_traced.items()}
        if layer.number != stack.kept[layer.traced]:
            self._check_constants(layer)
        for value, place in self._levels.place.items():
            if place == (layer.stack, layer.traced):
                values[value] = self._weight(value, layer)
        for value in self._model.graph.inputs:
            if self._levels.of.get(value) == level:
                values[value] = self._named[self._taken(value)]
        layer.values = self._write(level, values, layer)
        if len(stack.kept) - 1 == layer.traced:  # what later stacks read
            self._once |= layer.values

    def _check_constants(self, layer: _Layer) -> None:
        """Constants of a traced layer must be those of another one of its kind, if any, to be this layer's too."""
        kinds = self._few.stacks[layer.stack].reduced.kinds
        pairs = list(pairwise(kinds))
        others = [n for n, pair in enumerate(pairs) if n != layer.traced and pair == pairs[layer.traced]]
        if others:
            self._levels.alike(layer.stack, layer.traced, others[0])

    def _weight(self, value: ir.Value, layer: _Layer) -> ir.Value:
        """The weight of ``layer`` that stands for the traced layer's ``value``."""
        traced, form = self._levels.parameter[value]
        name = f"{layer.stack}.{layer.number}" + traced.removeprefix(f"{layer.stack}.{layer.traced}")
        weight = self._parameters.get(name)
        if weight is None or weight.shape != self._traced_parameters[traced].shape:
            raise UnlikeError
        named = name if value.name == traced else self._unused(f"{value.name}_{layer.number}")
        made = self._initializer(value, named, ir.Tensor(_FORMS[form](weight.detach().numpy()), name=named))
        made.metadata_props.update({key: _renumbered(note, layer) for key, note in value.metadata_props.items()})
        return made

    def _initializer(self, like: ir.Value, name: str, tensor: ir.TensorProtocol | None) -> ir.Value:
        made = _copied(like, name)
        made.const_value = tensor
        self._initializers.append(made)
        return made

    def _taken(self, value: ir.Value) -> str:
        """The next name of an input's or output's family."""
        free = self._free.get(family(value.name or ""))
        if not free:
            raise UnlikeError
        return free.popleft()

    def _write(self, level: int, values: dict[ir.Value, ir.Value], layer: _Layer | None) -> dict[ir.Value, ir.Value]:
        """Copies of a level's nodes, which read ``values``; returns what they compute, by the traced values."""
        computed = {}
        for node in self._levels.nodes.get(level, []):
            if any(value is not None and value not in values for value in node.inputs):
                raise UnlikeError
            outputs = [_copied(value, self._name(value, layer)) for value in node.outputs]
            copied = ir.Node(
                node.domain,
                node.op_type,
                [None if value is None else values[value] for value in node.inputs],
                list(node.attributes.values()),
                overload=node.overload,
                outputs=outputs,
                version=node.version,
                name=node.name if layer is None else self._unused(f"{node.name}_{layer.number}"),
                metadata_props={key: _renumbered(note, layer) for key, note in node.metadata_props.items()},
            )
            copied.meta.update(node.meta)
            self._nodes.append(copied)
            computed |= dict(zip(node.outputs, outputs, strict=True))
            values |= computed
        for value in self._model.graph.outputs:
            if self._levels.of.get(value, 0) == level:
                self._named[str(values[value].name)] = values[value]
        return computed

    def _name(self, value: ir.Value, layer: _Layer | None) -> str:
        if value.is_graph_output():
            return self._taken(value)
        return str(value.name) if layer is None else self._unused(f"{value.name}_{layer.number}")

    def _unused(self, name: str) -> str:
        while name in self._used:
            name += "_"
        self._used.add(name)
        return name

    def finished(self) -> ir.Model:
        """The full model's graph."""
        few, model = self._few, self._model
        if any(self._free.values()):
            raise UnlikeError
        inputs, outputs = ([self._named[spec.name] for spec in specs] for specs in (few.full.inputs, few.full.outputs))
        graph = ir.Graph(
            inputs,
            outputs,
            nodes=self._nodes,
            initializers=self._initializers,
            opset_imports=dict(model.graph.opset_imports),
            name=model.graph.name,
        )
        for value in inputs:
            if value.const_value is not None:  # the default of an input
                graph.register_initializer(value)
        full = ir.Model(graph, ir_version=model.ir_version, functions=list(model.functions.values()))
        full.meta.update(model.meta)
        full.metadata_props.update(model.metadata_props)
        return full


def _copied(value: ir.Value, name: str) -> ir.Value:
    shape = None if value.shape is None else value.shape.copy()
    copied = ir.Value(name=name, shape=shape, type=value.type, const_value=value.const_value)
    copied.metadata_props.update(value.metadata_props)
    return copied


def _renumbered(note: str, layer: _Layer | None) -> str:
    """A note on the modules that a node was traced in."""
    if layer is None:
        return note
    return re.sub(rf"\b{re.escape(layer.stack)}\.{layer.traced}\b", f"{layer.stack}.{layer.number}", note)
