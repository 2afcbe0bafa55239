"""The type of every float value of a program: forward, what each value is; backward, what its readers need.

A program is a graph, its branches and loops, and a function for every call (`instances`). Going forward in the order of
execution, every value gets its `Kind` and, if it is an activation, whether it has 16 bits. Going back, values that any
type would do for - parameters, masks, what is only moved - get the type that their readers need, so that a cast stands
as early as nothing has to be computed for it, and once.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import onnx_ir as ir

from posexport.precision.half.element_types import output_types
from posexport.precision.half.instances import Calls
from posexport.precision.half.kernels import Kernels
from posexport.precision.half.kinds import (
    BOUNDS,
    CHOOSES,
    INDIFFERENT,
    ISLANDS,
    LAYERS,
    MOVES,
    SMALL,
    STATISTICS,
    Info,
    Kind,
    is_float_cast,
)

#: ``wide``: float32, to compute with activations; ``exact``: float32, because positions are computed from it
Need = Literal["half", "wide", "exact"]


@dataclass
class Flow:
    """What is decided of a program's values and nodes.

    Attributes:
        calls: the function of every call.
        kernels: which operators there are kernels for in 16 bits.
        types: element types before the change.
        info: of every float32 value.
        contents: integers that depend on tokens, not on their positions alone: what they index is an activation.
        needs: what the readers of a value need.
        half: values that have 16 bits in the end.
        node_half: for a node that computes, whether it does in 16 bits.
    """

    calls: Calls
    kernels: Kernels
    largest: float
    types: dict[ir.Value, ir.DataType] = field(default_factory=dict)
    info: dict[ir.Value, Info] = field(default_factory=dict)
    contents: set[ir.Value] = field(default_factory=set)
    needs: defaultdict[ir.Value, set[Need]] = field(default_factory=lambda: defaultdict(set))
    half: set[ir.Value] = field(default_factory=set)
    node_half: dict[ir.Node, bool] = field(default_factory=dict)

    def floats(self, values: Iterable[ir.Value | None]) -> list[ir.Value]:
        """Of the values those that are float32."""
        return [value for value in values if value is not None and value in self.info]

    # -- forward

    def forward(self, graph: ir.Graph | ir.Function) -> None:
        """Every value's kind, in the order of execution; those of the graph's inputs are known."""
        if isinstance(graph, ir.Graph):
            for value in graph.initializers.values():
                if value not in self.types:
                    self._parameter(value)
        for node in graph:
            if node in self.calls:
                self._enter(self.calls[node].inputs, node.inputs)
                self.forward(self.calls[node])
                self._leave(node.outputs, [self.calls[node].outputs])
            elif node.op_type == "If":
                branches = [attribute.as_graph() for attribute in _graphs(node)]
                for branch in branches:
                    self.forward(branch)
                self._leave(node.outputs, [branch.outputs for branch in branches])
            elif node.op_type in ("Scan", "Loop"):
                self._loop(node)
            else:
                self._compute(node)

    def _parameter(self, value: ir.Value) -> None:
        tensor = value.const_value
        dtype = value.dtype or (None if tensor is None else tensor.dtype)
        if dtype is not None:
            self.types[value] = dtype
        if dtype != ir.DataType.FLOAT or tensor is None:
            return
        large = tensor.size == 1 and abs(float(tensor.numpy().reshape(()))) > self.largest
        kind = Kind.CONSTANT if tensor.size <= 1 else Kind.WEIGHT
        self.info[value] = Info(kind, size=tensor.size, large=large)

    def _enter(self, inner: Sequence[ir.Value], outer: Sequence[ir.Value | None]) -> None:
        """Inputs of a body are what it is called with."""
        for parameter, argument in zip(inner, outer, strict=False):
            if argument is None:
                continue
            if argument in self.types:
                self.types[parameter] = self.types[argument]
            if argument in self.info:
                self.info[parameter] = self.info[argument]
            if argument in self.contents:
                self.contents.add(parameter)

    def _leave(self, outer: Sequence[ir.Value], inner: Sequence[Sequence[ir.Value]]) -> None:
        """Outputs of a node are those of its bodies."""
        for index, value in enumerate(outer):
            results = [outputs[index] for outputs in inner if index < len(outputs)]
            known = [self.types[result] for result in results if result in self.types]
            if known:
                self.types[value] = known[0]
            if any(result in self.contents for result in results):
                self.contents.add(value)
            if floats := [self.info[result] for result in results if result in self.info]:
                self.info[value] = _join(floats)

    def _loop(self, node: ir.Node) -> None:
        body = node.attributes["body"].as_graph()
        inner, outer = loop_inputs(node, body)
        self._enter(inner, outer)
        carried = loop_carried(node, body)
        for value in body.inputs[:1] if node.op_type == "Loop" else ():
            self.types[value] = ir.DataType.INT64
        for _ in range(2):  # what a state is after the body, it is before its next run
            self.forward(body)
            for before, after in carried:
                if before in self.info and after in self.info:
                    self.info[before] = _join([self.info[before], self.info[after]])
        self._leave(node.outputs, [loop_results(node, body)])

    def _compute(self, node: ir.Node) -> None:
        graph = node.graph
        assert graph is not None
        types = output_types(node, self.types, self.kernels.opset)
        for value, dtype in zip(node.outputs, types, strict=True):
            if dtype is not None:
                self.types[value] = dtype
        if node.op_type not in _SIZES and any(value in self.contents for value in node.inputs if value is not None):
            self.contents.update(node.outputs)
        result = self._result(node)
        for index, value in enumerate(node.outputs):
            # means and deviations are float32 whatever the type of what is normalised
            measured = index in _FLOAT32_OUTPUTS.get(node.op_type, ())
            if self.types.get(value) == ir.DataType.FLOAT and not measured:
                self.info[value] = result

    def _result(self, node: ir.Node) -> Info:
        """What the float outputs of ``node`` are."""
        operands = [self.info[value] for value in self.floats(data_inputs(node))]
        self.node_half[node] = False
        if node.op_type in ("Constant", "ConstantOfShape"):
            return self._of_constant(node)
        if not operands:
            return Info(Kind.POSITION)
        kind = max(operand.kind for operand in operands)
        large = any(operand.large for operand in operands) and node.op_type not in BOUNDS
        if node.op_type in LAYERS and self._is_layer(operands):
            kind = Kind.ACTIVATION
        if kind != Kind.ACTIVATION:
            size = max(operand.size for operand in operands)
            if node.op_type == "Gather" and kind == Kind.WEIGHT:
                if node.inputs[1] in self.contents:
                    self.node_half[node] = self.kernels.has_half(node)
                    return Info(Kind.ACTIVATION, half=self.node_half[node])
                kind = Kind.TABLE
            return Info(kind, size=size, large=large)
        half, statistic = self._of_activation(node, operands)
        self.node_half[node] = half
        return Info(kind, half=half, statistic=statistic, large=large)

    def _of_constant(self, node: ir.Node) -> Info:
        value = node.attributes.get("value_float")
        large = value is not None and not value.is_ref() and abs(value.as_float()) > self.largest
        tensor = node.attributes.get("value")
        if tensor is not None and not tensor.is_ref() and tensor.as_tensor().dtype == ir.DataType.FLOAT:
            array = tensor.as_tensor().numpy()
            large = bool(array.size) and bool((abs(array) > self.largest).any())
            return Info(Kind.CONSTANT if array.size <= 1 else Kind.WEIGHT, size=array.size, large=large)
        return Info(Kind.CONSTANT, large=large)

    @staticmethod
    def _is_layer(operands: Sequence[Info]) -> bool:
        """A layer of parameters alone, or a large parameter's: a small network of positions stays one of positions."""
        if any(operand.kind == Kind.POSITION for operand in operands):
            return any(operand.kind in (Kind.WEIGHT, Kind.TABLE) and operand.size > SMALL for operand in operands)
        return max(operand.kind for operand in operands) >= Kind.WEIGHT

    def _of_activation(self, node: ir.Node, operands: Sequence[Info]) -> tuple[bool, bool]:
        """Whether ``node`` computes in 16 bits; if not, whether that is a statistic of its operand."""
        if node.op_type in ISLANDS or not self.kernels.has_half(node):
            return False, node.op_type in STATISTICS
        if node.op_type in LAYERS:
            return True, False
        activations = [operand for operand in operands if operand.kind == Kind.ACTIVATION]
        statistic = any(operand.statistic for operand in activations)
        if any(operand.half for operand in activations):
            # what a norm divides by its statistic is divided in float32
            return not statistic, False
        if any(operand.kind in (Kind.WEIGHT, Kind.TABLE) for operand in operands):
            return True, False
        return False, statistic and len(activations) == 1

    # -- backward

    def backward(self, graph: ir.Graph | ir.Function) -> None:
        """The type of every value, in the reverse of the order of execution; what its outputs need is known."""
        for node in reversed(list(graph)):
            if node in self.calls:
                function = self.calls[node]
                self._pass_needs(node.outputs, function.outputs)
                self.backward(function)
                self._settle_inputs(function.inputs, node.inputs)
                self._as(node.outputs, function.outputs)
            elif node.op_type == "If":
                self._backward_if(node)
            elif node.op_type in ("Scan", "Loop"):
                self._backward_loop(node)
            else:
                self._backward_node(node)

    def _backward_if(self, node: ir.Node) -> None:
        for index, value in enumerate(node.outputs):
            if value in self.info:
                half = self.settle(value)
                for attribute in _graphs(node):
                    self.needs[attribute.as_graph().outputs[index]].add(self._need(value, half))
        for attribute in _graphs(node):
            self.backward(attribute.as_graph())

    def _backward_loop(self, node: ir.Node) -> None:
        body = node.attributes["body"].as_graph()
        for before, after in loop_carried(node, body):
            if before in self.info:
                self._put(before, half=self.info[before].half)
                self.needs[after].add(self._need(before, before in self.half))
        for value, result in zip(node.outputs, loop_results(node, body), strict=True):
            if value in self.info:
                self.needs[result] |= {self._need(value, self.settle(value))}
        self.backward(body)
        for result, value in zip(loop_results(node, body), node.outputs, strict=True):
            if any(result is after for _, after in loop_carried(node, body)):
                before = next(before for before, after in loop_carried(node, body) if after is result)
                self._put(value, half=before in self.half)
        states = {before for before, _ in loop_carried(node, body)}
        inner, outer = loop_inputs(node, body)
        for parameter, argument in zip(inner, outer, strict=True):
            if argument is not None and argument in self.info:
                half = parameter in self.half if parameter in states else self.settle(parameter)
                self.needs[argument].add(self._need(parameter, half))

    def _pass_needs(self, outer: Sequence[ir.Value], inner: Sequence[ir.Value]) -> None:
        for value, result in zip(outer, inner, strict=False):
            self.needs[result] |= self.needs[value]

    def _as(self, outer: Sequence[ir.Value], inner: Sequence[ir.Value]) -> None:
        for value, result in zip(outer, inner, strict=False):
            self._put(value, half=result in self.half)

    def _settle_inputs(self, inner: Sequence[ir.Value], outer: Sequence[ir.Value | None]) -> None:
        for parameter, argument in zip(inner, outer, strict=False):
            if argument is not None and argument in self.info:
                self.needs[argument].add(self._need(parameter, self.settle(parameter)))

    def _backward_node(self, node: ir.Node) -> None:
        outputs, inputs = self.floats(node.outputs), self.floats(node.inputs)
        if node.op_type in INDIFFERENT and not (is_float_cast(node) and outputs):
            return
        half = self.node_half.get(node, False)
        if outputs and self._free(node):
            half = self.settle(outputs[0]) if len(outputs) == 1 else self._settle_all(outputs)
        elif not outputs:
            half = self._of_comparison(node, inputs)
        self.node_half[node] = half
        for value in outputs:
            self._put(value, half=half)
        kind = max((self.info[value].kind for value in outputs or inputs), default=Kind.CONSTANT)
        # what is made of parameters for positions is made of exact ones
        exact = kind == Kind.POSITION or any("exact" in self.needs[value] for value in outputs)
        need: Need = "half" if half else "exact" if exact else "wide"
        for value in inputs:
            self.needs[value].add(need)

    def _of_comparison(self, node: ir.Node, inputs: Sequence[ir.Value]) -> bool:
        """A comparison has the type of what it compares."""
        activations = [self.info[value] for value in inputs if self.info[value].kind == Kind.ACTIVATION]
        return bool(activations) and all(each.half for each in activations) and self.kernels.has_half(node)

    def _free(self, node: ir.Node) -> bool:
        """Whether the readers decide in which type ``node`` is: it computes nothing, or nothing of positions."""
        if node.op_type == "ConstantOfShape" and not self.kernels.has_half(node):
            return False  # of bfloat16 there is none before opset 20
        if node.op_type in ("Constant", "ConstantOfShape"):
            return not any(attribute.is_ref() for attribute in node.attributes.values())
        if is_float_cast(node):
            source = node.inputs[0]
            return source in self.info or (source is not None and self.types.get(source) == ir.DataType.BOOL)
        if not self.kernels.has_half(node):
            return False
        kinds = {self.info[value].kind for value in self.floats(data_inputs(node))}
        known = max(kinds, default=Kind.POSITION)
        if node.op_type in MOVES:
            return True
        if node.op_type in CHOOSES:
            return known <= Kind.TABLE
        return known == Kind.TABLE and node.op_type not in ISLANDS

    def settle(self, value: ir.Value) -> bool:
        """Decide the type of a value by its readers: whether it has 16 bits."""
        info, needs = self.info.get(value), self.needs[value]
        if info is None:
            return False
        if needs == {"half"}:
            half = True
        elif info.kind in (Kind.WEIGHT, Kind.TABLE) and needs:
            half = "exact" not in needs or info.size > SMALL
        else:
            half = info.half
        self._put(value, half=half)
        return half

    def _settle_all(self, outputs: Sequence[ir.Value]) -> bool:
        """One type for all outputs of a node that only moves."""
        union = set().union(*(self.needs[value] for value in outputs))
        for value in outputs:
            self.needs[value] = set(union)
        settled = {self.settle(value) for value in outputs}
        return settled == {True}

    def _put(self, value: ir.Value, *, half: bool) -> None:
        if half and value in self.info:
            self.half.add(value)
        else:
            self.half.discard(value)

    def _need(self, value: ir.Value, half: bool) -> Need:
        """What ``value`` needs of the one that it is elsewhere."""
        if half:
            return "half"
        return "exact" if "exact" in self.needs[value] else "wide"


#: outputs of ONNX Runtime's normalisations, by their place, that do not have the type of the input
_FLOAT32_OUTPUTS = {"SkipLayerNormalization": (1, 2), "SkipSimplifiedLayerNormalization": (1, 2)}
#: what these return of tokens does not depend on which ones they are
_SIZES = frozenset(("Shape", "Size"))


def data_inputs(node: ir.Node) -> Sequence[ir.Value | None]:
    """The operands whose numbers become the result's."""
    return node.inputs[:1] if node.op_type in MOVES or is_float_cast(node) else node.inputs


def loop_inputs(node: ir.Node, body: ir.Graph) -> tuple[Sequence[ir.Value], Sequence[ir.Value | None]]:
    """What the body of a Scan or Loop is given, and by what."""
    if node.op_type == "Loop":
        return body.inputs[1:], node.inputs[1:]
    return body.inputs, node.inputs


def loop_carried(node: ir.Node, body: ir.Graph) -> list[tuple[ir.Value, ir.Value]]:
    """Every state of a loop, before and after its body."""
    if node.op_type == "Loop":
        return list(zip(body.inputs[2:], body.outputs[1:], strict=False))
    states = len(body.inputs) - node.attributes["num_scan_inputs"].as_int()
    return list(zip(body.inputs[:states], body.outputs[:states], strict=True))


def loop_results(node: ir.Node, body: ir.Graph) -> Sequence[ir.Value]:
    """What becomes the outputs of a Scan or Loop."""
    return body.outputs[1:] if node.op_type == "Loop" else body.outputs


def is_graph(attribute: ir.Attr) -> bool:
    return attribute.type == ir.AttributeType.GRAPH


def _graphs(node: ir.Node) -> list[ir.Attr]:
    return [attribute for attribute in node.attributes.values() if is_graph(attribute)]


def _join(infos: Sequence[Info]) -> Info:
    """Of values one of which is used."""
    first = max(infos, key=lambda info: info.kind)
    return replace(
        first,
        half=any(info.half for info in infos),
        statistic=all(info.statistic for info in infos),
        size=max(info.size for info in infos),
        large=any(info.large for info in infos),
    )
