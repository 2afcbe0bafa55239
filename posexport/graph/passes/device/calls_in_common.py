"""What all calls of a function have in common: its body may rely on nothing else."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import onnx_ir as ir

from posexport.graph.ops.operator import DOMAIN

#: the shape of a size: [] or [1]
Shape = Literal["scalar", "one"]


@dataclass(frozen=True)
class Known:
    """Properties of a value: its shape if it is a size, or a weight, and whether it has one axis."""

    size: Shape | None = None
    table: tuple[int, ...] | None = None
    is_vector: bool = False


class CallsInCommon:
    """What all calls of each function have in common."""

    def __init__(self) -> None:
        self._inputs: defaultdict[str, list[list[Known]]] = defaultdict(list)
        self._aligned: defaultdict[str, list[bool]] = defaultdict(list)

    def note(self, node: ir.Node, inputs: list[Known], *, aligned: bool) -> None:
        self._inputs[node.op_type].append(inputs)
        self._aligned[node.op_type].append(aligned)

    def inputs_of(self, function: ir.Function) -> dict[ir.Value, Known]:
        """The properties of each input that all calls have."""
        calls = self._inputs[function.name]
        common: dict[ir.Value, Known] = {}
        for index, value in enumerate(function.inputs):
            records = [call[index] if index < len(call) else Known() for call in calls]
            same = {name: {getattr(record, name) for record in records} for name in Known.__dataclass_fields__}
            common[value] = Known(**{name: values.pop() for name, values in same.items() if len(values) == 1})
        return common

    def are_aligned(self, function: ir.Function) -> bool:
        """Whether queries are the last of the keys in every call."""
        calls = self._aligned[function.name]
        return bool(calls) and all(calls)


def callers_first(model: ir.Model) -> Iterable[ir.Function]:
    """The functions of our domain, each before those that it calls."""
    functions = {function.name: function for function in model.functions.values() if function.domain == DOMAIN}
    ordered: dict[str, ir.Function] = {}

    def visit(name: str) -> None:
        if name in ordered or name not in functions:
            return
        for node in ir.traversal.RecursiveGraphIterator(functions[name]):
            if node.domain == DOMAIN:
                visit(node.op_type)
        ordered[name] = functions[name]

    for name in functions:
        visit(name)
    return reversed(list(ordered.values()))
