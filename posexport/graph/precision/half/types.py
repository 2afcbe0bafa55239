"""Decides the types of a program in half precision: forward by what values are, backward by what readers need."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from posexport.graph.precision.half.flow import (
    BOUNDS,
    CHOOSES,
    INDIFFERENT,
    ISLANDS,
    LAYERS,
    MOVES,
    SMALL,
    STATISTICS,
    Flow,
    Info,
    Kind,
    Need,
    data_inputs,
    is_float_cast,
)
from posexport.graph.queries import TRUTHS, bodies, loop_carried, loop_inputs, loop_results
from posexport.graph.types import Types

#: outputs of ONNX Runtime's normalisations, by their place, that do not have the type of the input
_FLOAT32_OUTPUTS = {"SkipLayerNormalization": (1, 2), "SkipSimplifiedLayerNormalization": (1, 2)}


class Forward(Types):
    """Writes kinds, element types and the types that nodes compute in into ``flow``; the graph's inputs are known."""

    def __init__(self, flow: Flow) -> None:
        super().__init__({"": flow.kernels.opset})
        self.flow = flow

    def of(self, value: ir.Value) -> ir.DataType | None:
        return self.flow.types.get(value)

    def put(self, value: ir.Value, dtype: ir.DataType) -> None:
        self.flow.types[value] = dtype

    def called(self, node: ir.Node) -> ir.Function | None:
        return self.flow.calls.get(node)

    def constant(self, value: ir.Value) -> None:
        tensor = value.const_value
        if value in self.flow.types:  # the default of an input
            return
        super().constant(value)
        if tensor is None or tensor.dtype != ir.DataType.FLOAT:
            return
        large = tensor.size == 1 and abs(float(tensor.numpy().reshape(()))) > self.flow.largest
        kind = Kind.CONSTANT if tensor.size <= 1 else Kind.WEIGHT
        self.flow.info[value] = Info(kind, size=tensor.size, large=large)

    def join(self, value: ir.Value, candidates: Sequence[ir.Value]) -> None:
        super().join(value, candidates)
        if floats := [self.flow.info[other] for other in candidates if other in self.flow.info]:
            self.flow.info[value] = _join(floats)

    def node(self, node: ir.Node) -> None:
        # a cast from a comparison is float32 first; otherwise a single cast to 16 bits would do
        if node.op_type not in TRUTHS:
            super().node(node)
        result = self._result(node)
        for index, value in enumerate(node.outputs):
            # means and deviations are float32 for any type of input
            measured = index in _FLOAT32_OUTPUTS.get(node.op_type, ())
            if self.flow.types.get(value) == ir.DataType.FLOAT and not measured:
                self.flow.info[value] = result

    def _result(self, node: ir.Node) -> Info:
        """What the float outputs of ``node`` are."""
        operands = [self.flow.info[value] for value in self.flow.floats(data_inputs(node))]
        self.flow.node_half[node] = False
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
                if node.inputs[1] in self.flow.contents:
                    self.flow.node_half[node] = self.flow.kernels.has_half(node)
                    return Info(Kind.ACTIVATION, half=self.flow.node_half[node])
                kind = Kind.TABLE
            return Info(kind, size=size, large=large)
        half, statistic = self._of_activation(node, operands)
        self.flow.node_half[node] = half
        return Info(kind, half=half, statistic=statistic, large=large)

    def _of_constant(self, node: ir.Node) -> Info:
        value = node.attributes.get("value_float")
        large = value is not None and not value.is_ref() and abs(value.as_float()) > self.flow.largest
        tensor = node.attributes.get("value")
        if tensor is not None and not tensor.is_ref() and tensor.as_tensor().dtype == ir.DataType.FLOAT:
            array = tensor.as_tensor().numpy()
            large = bool(array.size) and bool((abs(array) > self.flow.largest).any())
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
        if node.op_type in ISLANDS or node in self.flow.islands or not self.flow.kernels.has_half(node):
            return False, node.op_type in STATISTICS
        if node.op_type in LAYERS:
            return True, False
        activations = [operand for operand in operands if operand.kind == Kind.ACTIVATION]
        statistic = any(operand.statistic for operand in activations)
        if any(operand.half for operand in activations):
            # a norm divides by its statistic in float32
            return not statistic, False
        if any(operand.kind in (Kind.WEIGHT, Kind.TABLE) for operand in operands):
            return True, False
        return False, statistic and len(activations) == 1


def _join(infos: Sequence[Info]) -> Info:
    """The information about a value that is one of several."""
    first = max(infos, key=lambda info: info.kind)
    return replace(
        first,
        half=any(info.half for info in infos),
        statistic=all(info.statistic for info in infos),
        size=max(info.size for info in infos),
        large=any(info.large for info in infos),
    )


@dataclass(frozen=True)
class Backward:
    """Writes needs, and which values have 16 bits in the end, into ``flow``."""

    flow: Flow

    def run(self, graph: ir.Graph | ir.Function) -> None:
        """The type of every value, in the reverse of the order of execution; what its outputs need is known."""
        for node in reversed(list(graph)):
            if node in self.flow.calls:
                function = self.flow.calls[node]
                self._pass_needs(node.outputs, function.outputs)
                self.run(function)
                self._decide_inputs(function.inputs, node.inputs)
                self._as(node.outputs, function.outputs)
            elif node.op_type == "If":
                self._backward_if(node)
            elif node.op_type in ("Scan", "Loop"):
                self._backward_loop(node)
            else:
                self._backward_node(node)

    def _backward_if(self, node: ir.Node) -> None:
        for index, value in enumerate(node.outputs):
            if value in self.flow.info:
                half = self.flow.decide(value)
                for branch in bodies(node).values():
                    self.flow.needs[branch.outputs[index]].add(self.flow.need_of(value, half))
        for branch in bodies(node).values():
            self.run(branch)

    def _backward_loop(self, node: ir.Node) -> None:
        body = bodies(node)["body"]
        for before, after in loop_carried(node, body):
            if before in self.flow.info:
                self.flow.put(before, half=self.flow.info[before].half)
                self.flow.needs[after].add(self.flow.need_of(before, before in self.flow.half))
        for value, result in zip(node.outputs, loop_results(node, body), strict=True):
            if value in self.flow.info:
                self.flow.needs[result] |= {self.flow.need_of(value, self.flow.decide(value))}
        self.run(body)
        for result, value in zip(loop_results(node, body), node.outputs, strict=True):
            if any(result is after for _, after in loop_carried(node, body)):
                before = next(before for before, after in loop_carried(node, body) if after is result)
                self.flow.put(value, half=before in self.flow.half)
        states = {before for before, _ in loop_carried(node, body)}
        inner, outer = loop_inputs(node, body)
        for parameter, argument in zip(inner, outer, strict=True):
            if argument is not None and argument in self.flow.info:
                half = parameter in self.flow.half if parameter in states else self.flow.decide(parameter)
                self.flow.needs[argument].add(self.flow.need_of(parameter, half))

    def _pass_needs(self, outer: Sequence[ir.Value], inner: Sequence[ir.Value]) -> None:
        for value, result in zip(outer, inner, strict=False):
            self.flow.needs[result] |= self.flow.needs[value]

    def _as(self, outer: Sequence[ir.Value], inner: Sequence[ir.Value]) -> None:
        for value, result in zip(outer, inner, strict=False):
            self.flow.put(value, half=result in self.flow.half)

    def _decide_inputs(self, inner: Sequence[ir.Value], outer: Sequence[ir.Value | None]) -> None:
        for parameter, argument in zip(inner, outer, strict=False):
            if argument is not None and argument in self.flow.info:
                self.flow.needs[argument].add(self.flow.need_of(parameter, self.flow.decide(parameter)))

    def _backward_node(self, node: ir.Node) -> None:
        outputs, inputs = self.flow.floats(node.outputs), self.flow.floats(node.inputs)
        if node.op_type in INDIFFERENT and not (is_float_cast(node) and outputs):
            return
        half = self.flow.node_half.get(node, False)
        if outputs and self._free(node):
            half = self.flow.decide(outputs[0]) if len(outputs) == 1 else self.flow.decide_all(outputs)
        elif not outputs:
            half = self._of_comparison(node, inputs)
        self.flow.node_half[node] = half
        for value in outputs:
            self.flow.put(value, half=half)
        kind = max((self.flow.info[value].kind for value in outputs or inputs), default=Kind.CONSTANT)
        # parameters that positions are computed from must be exact
        exact = kind == Kind.POSITION or any("exact" in self.flow.needs[value] for value in outputs)
        need: Need = "half" if half else "exact" if exact else "wide"
        for value in inputs:
            self.flow.needs[value].add(need)

    def _of_comparison(self, node: ir.Node, inputs: Sequence[ir.Value]) -> bool:
        """A comparison has the type of the compared values."""
        activations = [self.flow.info[value] for value in inputs if self.flow.info[value].kind == Kind.ACTIVATION]
        return bool(activations) and all(info.half for info in activations) and self.flow.kernels.has_half(node)

    def _free(self, node: ir.Node) -> bool:
        """Whether the readers decide in which type ``node`` is: it computes nothing, or nothing of positions."""
        if node.op_type == "ConstantOfShape" and not self.flow.kernels.has_half(node):
            return False  # of bfloat16 there is none before opset 20
        if node.op_type in ("Constant", "ConstantOfShape"):
            return not any(attribute.is_ref() for attribute in node.attributes.values())
        if is_float_cast(node):
            source = node.inputs[0]
            return source in self.flow.info or (source is not None and self.flow.types.get(source) == ir.DataType.BOOL)
        if node in self.flow.islands or not self.flow.kernels.has_half(node):
            return False
        kinds = {self.flow.info[value].kind for value in self.flow.floats(data_inputs(node))}
        known = max(kinds, default=Kind.POSITION)
        if node.op_type in MOVES:
            return True
        if node.op_type in CHOOSES:
            return known <= Kind.TABLE
        return known == Kind.TABLE and node.op_type not in ISLANDS
