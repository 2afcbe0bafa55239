"""Data dependencies of values, forward and backward, through nodes, branches and loops.

Dependencies are about elements: the output of an operator of ``breaks`` (default `SIZES`) has no element of its input.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import onnx_ir as ir

from posexport.base.spec import NO_CONTENT, Role
from posexport.graph.queries import CONTROL_FLOW, SHAPES, SIZES, TRUTHS, bodies, loop_carried, loop_inputs, loop_results


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


Passed = Mapping[ir.Value, Sequence[ir.Value]]
_Item = TypeVar("_Item")


def reachable(start: Iterable[_Item], onward: Callable[[_Item], Iterable[_Item | None]]) -> Iterator[_Item]:
    """``start`` and all that ``onward`` leads to, each once; callers may stop early."""
    waiting = list(start)
    seen = set(waiting)
    while waiting:
        yield (item := waiting.pop())
        for following in onward(item):
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)


def sources(
    value: ir.Value, *, stops: Container[ir.Value] = (), breaks: Container[str] = SIZES, passed: Passed | None = None
) -> Iterator[ir.Value]:
    """``value`` and all that its elements are computed from, not beyond ``stops``; what decides on a branch too.

    ``passed``: the `passed_values` of the graph, where ``value`` may be one of a branch's or a loop's body.
    """
    known = dict(passed or {})

    def onward(current: ir.Value) -> Iterable[ir.Value | None]:
        node = current.producer()
        if current in stops or (node is not None and node.op_type in breaks and not node.domain):
            return ()
        if node is None:
            return known.get(current, ())
        if not _is_control_flow(node):
            return node.inputs
        if current not in known:
            known.update(passed_values([node]))
        # also the condition of an If, the number of a Loop's iterations and whether it begins
        return [*known.get(current, ()), *node.inputs[: {"If": 1, "Loop": 2}.get(node.op_type, 0)]]

    return reachable([value], onward)


def inputs(value: ir.Value, *, stops: Collection[ir.Value] = (), breaks: Container[str] = SIZES) -> set[ir.Value]:
    """The graph's inputs, and the values of ``stops``, that elements of ``value`` are computed from."""
    every = sources(value, stops=stops, breaks=breaks)
    return {value for value in every if value in stops or (value.producer() is None and value.const_value is None)}


def dependents(
    graph: ir.Graph,
    values: Iterable[ir.Value],
    *,
    breaks: Container[str] = SIZES,
    function: Callable[[ir.Node], ir.Function | None] = lambda _: None,
) -> set[ir.Value]:
    """``values`` and all of ``graph`` that is computed from their elements, in bodies and functions too.

    Conditions of branches do not count. A function's inputs count where any call passes them a dependent value.

    Args:
        function: the one that a node calls, if it is to be entered.
    """
    dependent = set(values)
    _Dependents(dependent, breaks, function).run(graph)
    return dependent


def content_values(model: ir.Model, roles: Mapping[str, Role]) -> set[ir.Value]:
    """All values that hold something of the content (tokens, images, audio), and not of positions and masks alone.

    What only shapes, positions or masks lead to is position arithmetic: relative position projections W_R R, networks
    of distances, projections of a position table. Their weights are few, all tokens depend on them, and they are not
    quantised. Truth values of ids are masks: which tokens are padding, from which positions are counted.

    Args:
        roles: by the names of the graph's inputs; an input without one is content.
    """
    content = [value for value in model.graph.inputs if roles.get(value.name or "") not in NO_CONTENT]
    called = model.functions
    return dependents(
        model.graph, content, breaks=SHAPES | TRUTHS, function=lambda node: called.get(node.op_identifier())
    )


def passed_values(nodes: Iterable[ir.Node]) -> Passed:
    """What control flow hands on: inputs of bodies, outputs of If, Loop and Scan -> the values that they may be."""
    passed: dict[ir.Value, list[ir.Value]] = defaultdict(list)
    for node in nodes:
        for body in bodies(node).values() if _is_control_flow(node) else ():
            entering = zip(*loop_inputs(node, body), strict=False)
            leaving = zip(node.outputs, loop_results(node, body), strict=False)
            for value, other in (*entering, *loop_carried(node, body), *leaving):
                if other is not None:
                    passed[value].append(other)
    return passed


def _is_control_flow(node: ir.Node) -> bool:
    return node.op_type in CONTROL_FLOW and not node.domain


@dataclass(frozen=True)
class _Dependents(Propagation):
    """Adds to ``values`` all values that depend on them."""

    values: set[ir.Value]
    breaks: Container[str]
    function: Callable[[ir.Node], ir.Function | None]

    def called(self, node: ir.Node) -> ir.Function | None:
        return self.function(node)

    def join(self, value: ir.Value, candidates: Sequence[ir.Value]) -> None:
        if not self.values.isdisjoint(candidates):
            self.values.add(value)

    def node(self, node: ir.Node) -> None:
        if node.op_type not in self.breaks and not self.values.isdisjoint(node.inputs):
            self.values.update(node.outputs)
