"""Names: of outputs, as the source has them, and unique ones for every If, Scan and Loop and their bodies' first nodes.

ONNX Runtime names the failing node and nothing else: without a name an error inside a function's branch cannot be
traced to it. The proof reports by these names which branches ran (`posexport.proof.branches`).
"""

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from posexport.graph.edits import claim, free_names
from posexport.graph.passes.graph_pass import Context, GraphPass, PassResult
from posexport.graph.queries import CONTROL_FLOW, bodies


class OutputNames(GraphPass):
    """Outputs have the source's names again: a pass may have put another value there.

    Before: ``-> logits_before``
    After:  ``-> logits``
    """

    name = "output-names"
    description = "the graph's outputs under the names that the source has"
    phase = "guard"
    is_listed_idle = False

    def apply(self, model: ir.Model, context: Context) -> PassResult:
        """Apply the pass; the result counts outputs that had another name."""
        pairs = list(zip(model.graph.outputs, context.output_names, strict=False))
        renamed = sum(value.name != name for value, name in pairs)
        free_names(model.graph, context.output_names)
        for value, name in pairs:
            value.name = name
        return PassResult(renamed)


class ControlFlowNames(GraphPass):
    """Every If, Loop and Scan has a unique name, and the first node of each of its bodies.

    Before: ``If -> then_branch: MatMul ..``
    After:  ``If "Attention/context" -> then_branch: MatMul "Attention/context/tiled/MatMul" ..``
    """

    name = "control-flow-names"
    description = "names for branches and loops, by which a failing or unused one is found"
    phase = "name"
    is_listed_idle = False

    def apply(self, model: ir.Model, context: Context) -> PassResult:
        """Apply the pass; the result counts nodes that got a name."""
        return PassResult(_name_control_flow(model))


def _name_control_flow(model: ir.Model) -> int:
    """Name what has no name, or one that another node of the file has."""
    named = 0
    graphs: list[tuple[str, ir.Graph | ir.Function]] = [(name[1], model.functions[name]) for name in model.functions]
    graphs.append((model.graph.name or "main", model.graph))
    taken = {node.name for _, graph in graphs for node in ir.traversal.RecursiveGraphIterator(graph) if node.name}
    seen: set[str] = set()
    for prefix, graph in graphs:
        for node, base in _unnamed(prefix, graph):
            if not node.name or node.name in seen:
                node.name = claim(base, taken)
                named += 1
            seen.add(node.name)
    return named


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
