"""What all calls of a function have in common: its body may rely on nothing else."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Literal

import onnx_ir as ir

from posexport.ops.operator import DOMAIN

#: the shape of a size: [] or [1]
Shape = Literal["scalar", "one"]


class CallsInCommon:
    """What all calls of each function have in common."""

    def __init__(self) -> None:
        self._sizes: defaultdict[str, list[list[Shape | None]]] = defaultdict(list)
        self._aligned: defaultdict[str, list[bool]] = defaultdict(list)
        self._tables: defaultdict[str, list[list[tuple[int, ...] | None]]] = defaultdict(list)

    def note(
        self, node: ir.Node, sizes: list[Shape | None], tables: list[tuple[int, ...] | None], *, aligned: bool
    ) -> None:
        self._sizes[node.op_type].append(sizes)
        self._tables[node.op_type].append(tables)
        self._aligned[node.op_type].append(aligned)

    def tables_of(self, function: ir.Function) -> dict[ir.Value, tuple[int, ...]]:
        """The inputs that are weights of the same shape in every call, with that."""
        known = self._tables[function.name]
        found: dict[ir.Value, tuple[int, ...]] = {}
        for index, value in enumerate(function.inputs):
            given = {call[index] if index < len(call) else None for call in known}
            if len(given) == 1 and (shape := given.pop()) is not None:
                found[value] = shape
        return found

    def of(self, function: ir.Function) -> tuple[dict[ir.Value, Shape], bool]:
        """The inputs that are sizes in every call, and whether queries are the last of the keys in every call."""
        known = self._sizes[function.name]
        shapes: dict[ir.Value, Shape] = {}
        for index, value in enumerate(function.inputs):
            given = {call[index] if index < len(call) else None for call in known}
            if len(given) == 1 and (shape := given.pop()) is not None:
                shapes[value] = shape
        return shapes, bool(known) and all(self._aligned[function.name])


def callers_first(model: ir.Model) -> Iterable[ir.Function]:
    """The functions of our domain, each before those that it calls."""
    functions = {each.name: each for each in model.functions.values() if each.domain == DOMAIN}
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
