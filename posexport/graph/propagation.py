"""Forward analysis of a graph's values, from inputs to outputs: through nodes, functions and bodies."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import onnx_ir as ir

from posexport.graph.bodies import bodies, loop_carried, loop_inputs, loop_results
from posexport.graph.operators import CONTROL_FLOW


class Propagation(ABC):
    """A pass over nodes in the order of execution. Subclasses define the result for nodes, constants and copies."""

    def run(self, graph: ir.Graph | ir.Function) -> None:
        """Visit ``graph`` with its functions and bodies; the results for its inputs must be set."""
        if isinstance(graph, ir.Graph):
            for value in graph.initializers.values():
                self.constant(value)
        for node in graph:
            if (function := self.called(node)) is not None:
                self._enter(function.inputs, node.inputs)
                self.run(function)
                self._leave(node, [function.outputs])
            elif node.op_type in CONTROL_FLOW and not node.domain:
                self._control_flow(node)
            else:
                self.node(node)

    @abstractmethod
    def node(self, node: ir.Node) -> None:
        """Set the results for the outputs of an operator."""

    @abstractmethod
    def join(self, value: ir.Value, candidates: Sequence[ir.Value]) -> None:
        """Set the result for ``value``, which is a copy of one of ``candidates``.

        For example an input of a body (its argument) or an output of an If (the outputs of both branches).
        """

    def constant(self, value: ir.Value) -> None:  # noqa: B027  # optional
        """Set the result for an initializer or, without a tensor, for the iteration number of a Loop."""

    def called(self, node: ir.Node) -> ir.Function | None:
        """The function that ``node`` calls, if the analysis enters it."""
        return None

    def _control_flow(self, node: ir.Node) -> None:
        every = bodies(node).values()
        for body in every:
            if node.op_type == "Loop":
                self.constant(body.inputs[0])
            self._enter(*loop_inputs(node, body))
            carried = loop_carried(node, body)
            for _ in range(2 if carried else 1):  # the state after one iteration enters the next
                self.run(body)
                for before, after in carried:
                    self.join(before, [before, after])
        self._leave(node, [loop_results(node, body) for body in every])

    def _enter(self, inner: Sequence[ir.Value], outer: Sequence[ir.Value | None]) -> None:
        for parameter, argument in zip(inner, outer, strict=False):
            if argument is not None:
                self.join(parameter, [argument])

    def _leave(self, node: ir.Node, inner: Sequence[Sequence[ir.Value]]) -> None:
        for index, value in enumerate(node.outputs):
            self.join(value, [outputs[index] for outputs in inner if index < len(outputs)])
