"""Removes from a graph what int8 chooses for each layer by its activations, so that layers can be compared.

Rows of activations are divided by powers of two, in a node or in the norm before them, and are rounded about one of two
zero points: layers of one kind differ in both. What a file has is checked where its products are read
(`posexport.parity.quantized`): weights are the parameters times the same powers, and the calls of the full model round
about the same zero points.
"""

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, numpy_helper

from posexport.precision.calibration import DIVIDED, SMOOTHING
from posexport.precision.rows.activation_scales import PLAIN, ZERO_POINTS, highest_step
from posexport.precision.rows.activations import down, step, zero_point

_PLAIN = {
    zero_point(PLAIN.zero): np.uint8(PLAIN.zero),
    step(highest_step(PLAIN.zero)): np.float32(1 / highest_step(PLAIN.zero)),
}


def with_plain_rows(model: ModelProto) -> None:
    """Give all rows the zero point 128 and no factors, in place."""
    others = [zero for zero in ZERO_POINTS if zero != PLAIN.zero]
    names = {zero_point(zero): zero_point(PLAIN.zero) for zero in others}
    names |= {step(highest_step(zero)): step(highest_step(PLAIN.zero)) for zero in others}
    lower = {down(zero) for zero in others}
    kept = []
    for node in model.graph.node:
        if node.op_type == "Mul" and node.input[1].startswith(SMOOTHING):
            names[node.output[0]] = names.get(node.input[0], node.input[0])
            continue
        if node.op_type == "Mul" and node.input[1] in lower:
            del node.input[1]
            node.op_type = "Neg"
        _rename(node, names)
        kept.append(node)
    if len(kept) < len(model.graph.node):
        copies = [NodeProto.FromString(node.SerializeToString()) for node in kept]
        del model.graph.node[:]
        model.graph.node.extend(copies)
    known = {tensor.name for tensor in model.graph.initializer}
    read = {name for node in model.graph.node for name in node.input}
    for name, value in _PLAIN.items():
        if name in read - known:
            model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))


def _rename(node: NodeProto, names: dict[str, str]) -> None:
    for at, name in enumerate(node.input):
        node.input[at] = names.get(name, name)


def undivided(name: str, array: NDArray[np.float32], parameters: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    """The one of ``parameters`` that ``array``, of a norm, is but for powers of two; else ``array``."""
    if not name.endswith(DIVIDED):
        return array
    for parameter in parameters:
        if parameter.shape != array.shape or ((parameter == 0) != (array == 0)).any():
            continue
        mantissa, _ = np.frexp(np.divide(array, parameter, out=np.ones_like(array), where=parameter != 0))
        if (mantissa == 0.5).all():
            return parameter
    return array
