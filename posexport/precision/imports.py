"""Imports of ONNX Runtime's own operators."""

import onnx_ir as ir

from posexport.graph.bodies import with_bodies
from posexport.targets.target import MICROSOFT, MICROSOFT_OPSET


def import_microsoft(model: ir.Model) -> None:
    """Say in the model and in functions that they have ONNX Runtime's own operators, where they do."""
    for graph in (model.graph, *(function.graph for function in model.functions.values())):
        if any(node.domain == MICROSOFT for body in with_bodies(graph) for node in body):
            graph.opset_imports.setdefault(MICROSOFT, MICROSOFT_OPSET)
            model.opset_imports.setdefault(MICROSOFT, MICROSOFT_OPSET)
