"""Weights that a DequantizeLinear stores, by tensor, by channel or in blocks."""

import numpy as np
import onnx_ir as ir

from posexport.parity.quantized.constants import array_of, constant, tensor_name
from posexport.parity.quantized.records import Stored, StoredError, number_range


def dequantized(node: ir.Node, known: set[ir.Value], across: int) -> Stored | None:
    """The constant matrix of a DequantizeLinear; ``across``: the axis along which a channel runs."""
    whole, scale = constant(node.inputs[0], known), array_of(node, 1)
    if whole is None or scale is None or whole.ndim != 2:
        return None
    zero = array_of(node, 2) if len(node.inputs) > 2 else None
    if zero is not None:
        known.add(node.inputs[2])  # type: ignore[arg-type]  # it is there
    zero = np.zeros(scale.shape) if zero is None else zero.astype(np.float64)
    axis, size = node.attributes.get_int("axis", 1) % 2, node.attributes.get_int("block_size", 0)
    scale = scale.astype(np.float64)
    if size and axis != across:
        raise StoredError(f"{tensor_name(node.inputs[0])} has blocks across its channels, which is not known")
    if not size:
        if scale.ndim and scale.size > 1 and axis == across:
            raise StoredError(f"{tensor_name(node.inputs[0])} has a scale for each input channel, which is not known")
        size = whole.shape[across]
        scale, zero = (np.broadcast_to(each.reshape(-1, 1), (whole.shape[1 - across], 1)) for each in (scale, zero))
    elif across == 0:
        scale, zero = scale.T, zero.T
    matrix = (whole.T if across == 0 else whole).astype(np.int16)
    tensor = node.inputs[0]
    assert tensor is not None
    return Stored(tensor_name(tensor), matrix, scale, zero, size, *number_range(whole))
