"""Weights behind the nodes that read them: dequantized, cast, or as they are."""

import onnx_ir as ir

#: operators that turn a stored weight into the one that is computed with, by its first input
_READERS = frozenset(("Cast", "DequantizeLinear", "Mul", "Sub", "Transpose", "Identity", "Reshape"))


def stored(value: ir.Value | None) -> ir.Value | None:
    """The initializer or Constant that ``value`` has the elements of, perhaps quantized; None if it is computed."""
    for _ in range(5):
        if value is None:
            return None
        if ir.convenience.get_const_tensor(value) is not None:
            return value
        node = value.producer()
        if node is None or node.op_type not in _READERS or not node.inputs:
            return None
        # scales and zero points are constants too
        if any(other is not None and ir.convenience.get_const_tensor(other) is None for other in node.inputs[1:]):
            return None
        value = node.inputs[0]
    return None
