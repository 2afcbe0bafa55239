"""Cosines and sines of the RotaryEmbedding that onnxscript's optimiser writes for a user's rotation."""

import onnx_ir as ir

from posexport.graph.builder import Builder
from posexport.passes.graph_pass import Context, GraphPass, PassResult


class RotaryRows(GraphPass):
    """Expand cosines and sines with batch size 1 to the batch of the rotated value.

    Before: ``RotaryEmbedding(x [B, H, T, D], cos [1, T, D / 2], sin [1, T, D / 2])``
    After:  ``RotaryEmbedding(x, Expand(cos, [B, 1, 1]), Expand(sin, [B, 1, 1]))``

    At opset 23 and above the optimiser writes the operator also where the angles are the same for the whole batch, as
    in every encoder that counts its positions itself; ONNX Runtime refuses these.
    """

    name = "rotary-rows"
    description = "cosines and sines of RotaryEmbedding for every row of the batch"
    phase = "recognise"
    is_listed_idle = False

    def apply(self, model: ir.Model, context: Context) -> PassResult:
        """Apply the pass; the result counts rotations."""
        return PassResult(sum(_expanded(node) for node in list(model.graph)))


def _expanded(node: ir.Node) -> bool:
    """Whether ``node`` is a RotaryEmbedding with angles of a batch of 1, which are then expanded."""
    if (node.domain, node.op_type) != ("", "RotaryEmbedding"):
        return False
    x, *angles = node.inputs[:3]
    if x is None or not all(_of_all_rows(angle) for angle in angles):
        return False
    g = Builder.at(node)
    whole = g.shape(g.size(x, 0), [1, 1])
    for index, angle in enumerate(angles, 1):
        node.replace_input_with(index, g.Expand(angle, whole))
    return True


def _of_all_rows(angle: ir.Value | None) -> bool:
    """Whether a cosine or sine has a batch of 1; the optimiser keeps the shape of its input alone."""
    node = None if angle is None else angle.producer()
    of = None if node is None or not node.inputs else node.inputs[0]
    shape = next((value.shape for value in (angle, of) if value is not None and value.shape is not None), None)
    return shape is not None and shape[0] == 1
