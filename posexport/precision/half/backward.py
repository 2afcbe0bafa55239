"""Backward: the type of every value, by what its readers need."""

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from posexport.graph.bodies import bodies, loop_carried, loop_inputs, loop_results
from posexport.precision.half.flow import Flow, Need, data_inputs
from posexport.precision.half.kinds import CHOOSES, INDIFFERENT, ISLANDS, MOVES, Kind, is_float_cast


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
            if value in self.flow.info:
                half = self.flow.settle(value)
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
                self.flow.needs[result] |= {self.flow.need_of(value, self.flow.settle(value))}
        self.run(body)
        for result, value in zip(loop_results(node, body), node.outputs, strict=True):
            if any(result is after for _, after in loop_carried(node, body)):
                before = next(before for before, after in loop_carried(node, body) if after is result)
                self.flow.put(value, half=before in self.flow.half)
        states = {before for before, _ in loop_carried(node, body)}
        inner, outer = loop_inputs(node, body)
        for parameter, argument in zip(inner, outer, strict=True):
            if argument is not None and argument in self.flow.info:
                half = parameter in self.flow.half if parameter in states else self.flow.settle(parameter)
                self.flow.needs[argument].add(self.flow.need_of(parameter, half))

    def _pass_needs(self, outer: Sequence[ir.Value], inner: Sequence[ir.Value]) -> None:
        for value, result in zip(outer, inner, strict=False):
            self.flow.needs[result] |= self.flow.needs[value]

    def _as(self, outer: Sequence[ir.Value], inner: Sequence[ir.Value]) -> None:
        for value, result in zip(outer, inner, strict=False):
            self.flow.put(value, half=result in self.flow.half)

    def _settle_inputs(self, inner: Sequence[ir.Value], outer: Sequence[ir.Value | None]) -> None:
        for parameter, argument in zip(inner, outer, strict=False):
            if argument is not None and argument in self.flow.info:
                self.flow.needs[argument].add(self.flow.need_of(parameter, self.flow.settle(parameter)))

    def _backward_node(self, node: ir.Node) -> None:
        outputs, inputs = self.flow.floats(node.outputs), self.flow.floats(node.inputs)
        if node.op_type in INDIFFERENT and not (is_float_cast(node) and outputs):
            return
        half = self.flow.node_half.get(node, False)
        if outputs and self._free(node):
            half = self.flow.settle(outputs[0]) if len(outputs) == 1 else self.flow.settle_all(outputs)
        elif not outputs:
            half = self._of_comparison(node, inputs)
        self.flow.node_half[node] = half
        for value in outputs:
            self.flow.put(value, half=half)
        kind = max((self.flow.info[value].kind for value in outputs or inputs), default=Kind.CONSTANT)
        # what is made of parameters for positions is made of exact ones
        exact = kind == Kind.POSITION or any("exact" in self.flow.needs[value] for value in outputs)
        need: Need = "half" if half else "exact" if exact else "wide"
        for value in inputs:
            self.flow.needs[value].add(need)

    def _of_comparison(self, node: ir.Node, inputs: Sequence[ir.Value]) -> bool:
        """A comparison has the type of what it compares."""
        activations = [self.flow.info[value] for value in inputs if self.flow.info[value].kind == Kind.ACTIVATION]
        return bool(activations) and all(each.half for each in activations) and self.flow.kernels.has_half(node)

    def _free(self, node: ir.Node) -> bool:
        """Whether the readers decide in which type ``node`` is: it computes nothing, or nothing of positions."""
        if node.op_type == "ConstantOfShape" and not self.flow.kernels.has_half(node):
            return False  # of bfloat16 there is none before opset 20
        if node.op_type in ("Constant", "ConstantOfShape"):
            return not any(attribute.is_ref() for attribute in node.attributes.values())
        if is_float_cast(node):
            source = node.inputs[0]
            return source in self.flow.info or (source is not None and self.flow.types.get(source) == ir.DataType.BOOL)
        if not self.flow.kernels.has_half(node):
            return False
        kinds = {self.flow.info[value].kind for value in self.flow.floats(data_inputs(node))}
        known = max(kinds, default=Kind.POSITION)
        if node.op_type in MOVES:
            return True
        if node.op_type in CHOOSES:
            return known <= Kind.TABLE
        return known == Kind.TABLE and node.op_type not in ISLANDS
