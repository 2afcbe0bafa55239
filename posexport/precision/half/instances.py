"""A copy of a function for every call of it, so that each may get types of its own; equal copies become one again."""

from collections import defaultdict

import onnx_ir as ir

from posexport.graph.edits import claim

#: the function that a node calls
Calls = dict[ir.Node, ir.Function]


def separate(model: ir.Model) -> Calls:
    """Every call in the graph, in functions and in branches, with a copy of its function for this call alone."""
    calls: Calls = {}

    def visit(graph: ir.Graph | ir.Function) -> None:
        for node in ir.traversal.RecursiveGraphIterator(graph):
            function = model.functions.get(node.op_identifier())
            if function is not None:
                calls[node] = function.clone()
                visit(calls[node])

    visit(model.graph)
    return calls


def merge(model: ir.Model, calls: Calls) -> None:
    """Give ``model`` the functions of its calls, each once: those of one kind that differ are numbered."""
    kept: dict[bytes, ir.Function] = {}
    names: defaultdict[str, set[str]] = defaultdict(set)

    def visit(graph: ir.Graph | ir.Function) -> None:
        for node in ir.traversal.RecursiveGraphIterator(graph):
            if node not in calls:
                continue
            function = calls[node]
            visit(function)  # callees first: their names are part of what a body is
            key = ir.to_proto(function).SerializeToString(deterministic=True)
            if key not in kept:
                function.name = claim(function.name, names[function.domain], between="")
                kept[key] = function
            node.op_type = kept[key].name

    visit(model.graph)
    model.functions.clear()
    for function in kept.values():
        model.functions[function.identifier()] = function
