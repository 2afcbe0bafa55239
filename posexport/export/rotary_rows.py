"""Angles of a RotaryEmbedding that onnxscript's optimiser made of a module's own rotation, one row for each of x.

At opset 23 and above it does so also where the angles are the same for the whole batch, [1, T, D / 2], as in every
encoder that counts its positions itself; the operator needs those of every row, and ONNX Runtime refuses others.
"""

import onnx_ir as ir

from posexport.graph.builder import Builder


def settle(model: ir.Model) -> None:
    """Expand cosines and sines of a batch of 1 to the batch of what is rotated."""
    for node in [node for node in model.graph if (node.domain, node.op_type) == ("", "RotaryEmbedding")]:
        x, *angles = node.inputs[:3]
        if x is None or not all(_of_all_rows(each) for each in angles):
            continue
        g = Builder.at(node)
        whole = g.shape(g.size(x, 0), [1, 1])
        for index, each in enumerate(angles, 1):
            node.replace_input_with(index, g.Expand(each, whole))


def _of_all_rows(angle: ir.Value | None) -> bool:
    """Whether a cosine or sine has a batch of 1; the optimiser gives the shape of what it is of alone."""
    node = None if angle is None else angle.producer()
    of = None if node is None or not node.inputs else node.inputs[0]
    shape = next((each.shape for each in (angle, of) if each is not None and each.shape is not None), None)
    return shape is not None and shape[0] == 1
