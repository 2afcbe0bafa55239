"""Writes the graph of all layers from the trace of a few."""

import copy
import re
from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise

import onnx_ir as ir

from posexport.conversion.export.by_layers.levels import FORMS, Levels, UnlikeError, names_by_parameter
from posexport.proof.full_model.regions import family, number_of
from posexport.proof.reduced.reduction import Reduction


@dataclass
class Layer:
    """A layer of the full model; ``traced``: the traced layer that it repeats; ``values``: by that layer's values."""

    stack: str
    number: int
    traced: int
    values: dict[ir.Value, ir.Value] = field(default_factory=dict)


class Writer:
    """Writes the full model's graph, layer by layer."""

    def __init__(self, few: Reduction, model: ir.Model, levels: Levels) -> None:
        self._few, self._model, self._levels = few, model, levels
        names = names_by_parameter(few.full.module)
        self._parameters = {name: parameter for parameter, aliases in names.items() for name in aliases}
        self._traced_parameters = dict(few.source.module.named_parameters(remove_duplicate=False))
        #: of parameters that several layers share, or none has: the name that the full model's trace gives them
        last = {name: names[p][-1] for name, p in self._traced_parameters.items() if p in names}
        #: names of inputs and outputs that no layer has taken, by what they are but for their number
        self._free: dict[str, deque[str]] = {}
        inputs, outputs = [spec.name for spec in few.full.inputs], [spec.name for spec in few.full.outputs]
        for name in sorted([*inputs, *outputs], key=number_of):
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

    def add(self, layer: Layer, before: Layer | None) -> None:
        """Write the nodes of ``layer``, which follows ``before`` in its stack."""
        stack, level = self._few.stacks[layer.stack], self._levels.of_layer[layer.stack, layer.traced]
        values = dict(self._once)
        if before is not None and before.traced == layer.traced - 1:
            values |= before.values
        elif before is not None:
            same = self._levels.counterparts(layer.stack, before.traced, layer.traced - 1)
            values |= {value: before.values[of_before] for value, of_before in same.items()}
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

    def _check_constants(self, layer: Layer) -> None:
        """Raises UnlikeError if constants of the traced layer differ from another traced layer's of its kind."""
        kinds = self._few.stacks[layer.stack].reduced.kinds
        pairs = list(pairwise(kinds))
        same_pair = [n for n, pair in enumerate(pairs) if n != layer.traced and pair == pairs[layer.traced]]
        if same_pair:
            self._levels.counterparts(layer.stack, layer.traced, same_pair[0])

    def _weight(self, value: ir.Value, layer: Layer) -> ir.Value:
        """The weight of ``layer`` in place of the traced layer's ``value``."""
        traced, form = self._levels.parameter[value]
        name = f"{layer.stack}.{layer.number}" + traced.removeprefix(f"{layer.stack}.{layer.traced}")
        weight = self._parameters.get(name)
        if weight is None or weight.shape != self._traced_parameters[traced].shape:
            raise UnlikeError
        named = name if value.name == traced else self._unused(f"{value.name}_{layer.number}")
        weight_value = self._initializer(value, named, ir.Tensor(FORMS[form](weight.detach().numpy()), name=named))
        weight_value.metadata_props.update(
            {key: _renumbered(note, layer) for key, note in value.metadata_props.items()}
        )
        return weight_value

    def _initializer(self, like: ir.Value, name: str, tensor: ir.TensorProtocol | None) -> ir.Value:
        copied = _copied(like, name)
        copied.const_value = tensor
        self._initializers.append(copied)
        return copied

    def _taken(self, value: ir.Value) -> str:
        """The next name of an input's or output's family."""
        free = self._free.get(family(value.name or ""))
        if not free:
            raise UnlikeError
        return free.popleft()

    def _write(self, level: int, values: dict[ir.Value, ir.Value], layer: Layer | None) -> dict[ir.Value, ir.Value]:
        """Copies of a level's nodes, which read ``values``; returns what they compute, by the traced values."""
        computed: dict[ir.Value, ir.Value] = {}
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

    def _name(self, value: ir.Value, layer: Layer | None) -> str:
        if value.is_graph_output():
            return self._taken(value)
        return str(value.name) if layer is None else self._unused(f"{value.name}_{layer.number}")

    def _unused(self, name: str) -> str:
        while name in self._used:
            name += "_"
        self._used.add(name)
        return name

    def finished(self) -> ir.Model:
        """Returns the full model's graph."""
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
    # passes change types in place
    copied = ir.Value(name=name, shape=shape, type=copy.copy(value.type), const_value=value.const_value)
    copied.metadata_props.update(value.metadata_props)
    return copied


def _renumbered(note: str, layer: Layer | None) -> str:
    """A note on the modules that a node was traced in."""
    if layer is None:
        return note
    return re.sub(rf"\b{re.escape(layer.stack)}\.{layer.traced}\b", f"{layer.stack}.{layer.number}", note)
