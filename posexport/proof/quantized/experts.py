"""Reads the quantized weights of ONNX Runtime's QMoE: experts in blocks, which it multiplies by float32 activations.

Shape letters: E experts, C channels of the model, M channels of an expert.
"""

import numpy as np
import onnx_ir as ir

from posexport.proof.quantized.records import (
    Array,
    Rounding,
    Stored,
    StoredError,
    Use,
    array_of,
    constant,
    tensor_name,
    unpacked,
)

#: inputs with the integers and the scales of both products
_FIRST, _SECOND = (2, 3), (5, 6)


def experts(node: ir.Node, known: set[ir.Value]) -> list[Use]:
    """Both weights of a QMoE as matrices that tokens are multiplied by; empty for another node.

    [E 2 M, C], in which a gate's row stands before each row of the other half, and [E, C, M].
    """
    if node.op_type != "QMoE":
        return []
    fused = node.attributes.get_int("swiglu_fusion", 0) == 1
    if not fused or len([value for value in node.inputs if value is not None]) != len(
        ("x", "scores", *_FIRST, *_SECOND)
    ):
        raise StoredError(f"QMoE {node.name} has biases, zero points or another order of its weights than is known")
    return [_use(node, known, _FIRST, gated=True), _use(node, known, _SECOND, gated=False)]


def _use(node: ir.Node, known: set[ir.Value], places: tuple[int, int], *, gated: bool) -> Use:
    packed, scale = constant(node.inputs[places[0]], known), array_of(node, places[1])
    if packed is None or scale is None:
        raise StoredError(f"QMoE {node.name} multiplies by a weight or a scale that is no constant")
    bits, size = (node.attributes.get_int(name, 0) or 0 for name in ("expert_weight_bits", "block_size"))

    def matrix(array: Array) -> Array:
        """[N, ..] of [E, rows, ..], as the product of all experts has it."""
        count, rows, _ = array.shape
        if gated:
            return array.reshape(count, rows // 2, 2, -1).swapaxes(1, 2).reshape(count * rows, -1)
        return array.swapaxes(0, 1).reshape(rows, -1)

    whole, scales = unpacked(matrix(packed), bits), matrix(scale).astype(np.float64)
    middle = np.full(scales.shape, float(1 << (bits - 1)))
    name = tensor_name(node.inputs[places[0]])
    return Use(Stored(name, whole, scales, middle, size, 0, (1 << bits) - 1), False, [Rounding()], [None])
