"""What passes that recognise a user's operators have in common."""

import onnx_ir as ir
from onnx_ir.passes.common import CommonSubexpressionEliminationPass, RemoveUnusedNodesPass

from posexport.passes.graph_pass import Context, GraphPass


class Recognition(GraphPass):
    """For users' modules: definitions of posexport have nodes of its own from the start."""

    phase = "recognise"
    writes_copies = True

    def concerns(self, context: Context) -> bool:
        return context.traced_attention is not None


def share_equal_nodes(model: ir.Model) -> None:
    """What layers share once, where a pass wrote it for each."""
    CommonSubexpressionEliminationPass()(model)
    RemoveUnusedNodesPass()(model)
