"""Names: of outputs, as the source has them, and unique ones for every If, Scan and Loop and their bodies' first nodes.

ONNX Runtime names the failing node and nothing else: without a name an error inside a function's branch cannot be
traced to it. The proof reports by these names which branches ran (`posexport.parity.branches`).
"""

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from posexport.graph.bodies import bodies
from posexport.graph.edits import claim, free_names
from posexport.graph.operators import CONTROL_FLOW


def name_outputs(model: ir.Model, names: Sequence[str]) -> None:
    """Give the graph's outputs these names again, in place: a pass may have put another value there."""
    free_names(model.graph, names)
    for value, name in zip(model.graph.outputs, names, strict=True):
        value.name = name


def name_control_flow(model: ir.Model) -> None:
    """Name what has no name, or one that another node of the file has, in place."""
    graphs: list[tuple[str, ir.Graph | ir.Function]] = [(name[1], model.functions[name]) for name in model.functions]
    graphs.append((model.graph.name or "main", model.graph))
    taken = {node.name for _, graph in graphs for node in ir.traversal.RecursiveGraphIterator(graph) if node.name}
    seen: set[str] = set()
    for prefix, graph in graphs:
        for node, wanted in _unnamed(prefix, graph):
            if not node.name or node.name in seen:
                node.name = claim(wanted, taken)
            seen.add(node.name)


def _unnamed(prefix: str, graph: "ir.Graph | ir.Function") -> Iterator[tuple[ir.Node, str]]:
    """The nodes to name, outermost first, each with a name that says where it is and what it computes."""
    for node in graph:
        if node.op_type in CONTROL_FLOW and not node.domain:
            yield node, f"{prefix}/{_subject(node.outputs)}"
        for attribute, body in bodies(node).items():
            path = f"{prefix}/{_subject(node.outputs)}/{body.name or attribute}"
            first = next(iter(body), None)
            if first is not None and (first.op_type not in CONTROL_FLOW or first.domain):
                yield first, f"{path}/{first.op_type}"
            yield from _unnamed(path, body)


def _subject(outputs: Sequence[ir.Value]) -> str:
    return next((value.name for value in outputs if value.name), "value")
