"""The base of passes that recognise attention, rotations and biases in PyTorch operators."""

import onnx_ir as ir
from onnx_ir.passes.common import CommonSubexpressionEliminationPass, RemoveUnusedNodesPass

from posexport.graph.passes.graph_pass import Context, GraphPass


class Recognition(GraphPass):
    """A pass for users' modules; the trace of a definition has posexport's nodes already."""

    phase = "recognise"
    writes_copies = True

    def concerns(self, context: Context) -> bool:
        return context.traced_attention is not None


def share_equal_nodes(model: ir.Model) -> None:
    """Merge equal nodes that a pass wrote for each layer."""
    CommonSubexpressionEliminationPass()(model)
    RemoveUnusedNodesPass()(model)
