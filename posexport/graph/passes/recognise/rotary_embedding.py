"""The RotaryEmbedding that onnxscript's optimiser writes for a user's rotation, as a rotation node."""

from typing import Any

import onnx_ir as ir

from posexport.graph.builder import Builder
from posexport.graph.edits import take_place
from posexport.graph.ops.rotation import Layout, RotationSpec
from posexport.graph.passes.graph_pass import Context, GraphPass, PassResult
from posexport.graph.queries import sizes


class RotaryEmbeddings(GraphPass):
    """One rotation node for every RotaryEmbedding of split heads.

    Before: ``RotaryEmbedding(x [B, H, T, D], cos [B or 1, T, F], sin [B or 1, T, F])``
    After:  ``posexport::Rotation(x, Unsqueeze(cos, [1]), Unsqueeze(sin, [1]))``

    At opset 23 and above the optimiser writes the operator for Llama's rotation, also where the angles are the same
    for the whole batch, which ONNX Runtime refuses. Later passes and lowerings know rotation nodes only. Left: tables
    that are read by ``position_ids``, and packed heads [B, T, H * D].
    """

    name = "rotary-embedding"
    description = "RotaryEmbedding, which the exporter's optimiser writes at opset 23, as RoPE nodes"
    phase = "recognise"
    writes_copies = True
    is_listed_idle = False

    def apply(self, model: ir.Model, context: Context) -> PassResult:
        """Apply the pass; the result counts rotations."""
        nodes = [node for node in model.graph if (node.domain, node.op_type) == ("", "RotaryEmbedding")]
        return PassResult(sum(_rewritten(node) for node in nodes))


def _rewritten(node: ir.Node) -> bool:
    """Replace ``node`` if its heads are split, its angles of tokens and the number of pairs known."""
    x, *angles = node.inputs[:3]
    by_ids = len(node.inputs) > 3 and node.inputs[3] is not None
    cos, sin = (_with_shape(angle) for angle in angles)
    if by_ids or x is None or cos is None or sin is None or len(sizes(x) or ()) != 4:
        return False
    _, heads, _, channels = sizes(x) or ()
    if not isinstance(heads, int) or not isinstance(channels, int):
        return False
    dim = node.attributes.get_int("rotary_embedding_dim", 0) or channels
    if (sizes(cos) or ())[2:] != (dim // 2,):
        return False

    # the first channels, in halves or in adjacent pairs, are rotated
    layout: Layout = "interleaved" if node.attributes.get_int("interleaved", 0) else "half"
    shared = (sizes(cos) or ())[0] == (sizes(sin) or ())[0] == 1
    spec = RotationSpec(layout, dim < channels, shared)
    attributes: dict[str, Any] = {}
    if spec.partial:
        parts = [dim // 2] * 2 if layout == "half" else [dim]
        attributes = {"heads": heads, "dim": dim, "parts": [*parts, channels - dim]}
    g = Builder.at(node)
    inputs = {"x": x, "cos": g.Unsqueeze(cos, [1]), "sin": g.Unsqueeze(sin, [1])}
    for name in ("interleaved", "num_heads", "rotary_embedding_dim"):
        node.attributes.pop(name, None)
    take_place(spec.node(inputs, node, **attributes), node)
    return True


def _with_shape(angle: ir.Value | None) -> ir.Value | None:
    """Cosines or sines [B or 1, T, F]; the optimiser gives them no shape, which is that of their angles."""
    node = None if angle is None else angle.producer()
    source = None if node is None or not node.inputs else node.inputs[0]
    if angle is not None and angle.shape is None and source is not None:
        angle.shape, angle.type = source.shape, source.type
    return angle if len(sizes(angle) or ()) == 3 else None
