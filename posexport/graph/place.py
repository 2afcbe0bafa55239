"""Where the Builder inserts nodes in a graph, and the constants that its nodes read."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from posexport.graph.edits import initializer, integers


@dataclass
class Place:
    """Where nodes are written in ``graph``: before a node or after it, at the end where neither is set.

    Attributes:
        like: nodes that say in which modules the new ones were traced.
        name: begins the names of all values; without it the graph names those that get none.
        initializers: constants are initialisers, else nodes.
    """

    graph: ir.Graph
    before: ir.Node | None
    after: ir.Node | None
    like: Sequence[ir.Node]
    name: str
    initializers: bool

    def insert(self, node: ir.Node) -> None:
        for other in self.like:
            for key, value in other.metadata_props.items():
                node.metadata_props.setdefault(key, value)
        if self.after is not None:
            self.graph.insert_after(self.after, node)
            self.after = node
        elif self.before is not None:
            self.graph.insert_before(self.before, node)
        else:
            self.graph.append(node)


def shared_constant(graph: ir.Graph, operand: Any, dtype: ir.DataType) -> ir.Value:
    """An initializer of ``graph``; equal lists of integers and equal scalars share one."""
    if isinstance(operand, Sequence):
        return integers(graph, operand)
    if not isinstance(operand, np.ndarray):
        operand = np.asarray(operand, np.int64 if isinstance(operand, int) else dtype.numpy())
    if operand.ndim:
        return initializer(graph, "constant", ir.tensor(operand))
    name = f"{operand.dtype}_{operand.item()!r}".replace("-", "minus_")
    return graph.initializers.get(name) or initializer(graph, name, ir.tensor(operand))
