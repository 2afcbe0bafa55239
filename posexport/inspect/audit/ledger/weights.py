"""The weights of a graph as matrices of floats, quantized ones dequantized."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

Array = NDArray[Any]
#: operator -> the inputs with a quantized weight and its zero point
_QUANTIZED = {
    "MatMulInteger": (1, 3),
    "ConvInteger": (1, 3),
    "DynamicQuantizeMatMul": (1, 3),
    "MatMulIntegerToFloat": (1, 5),
    "QLinearMatMul": (3, 5),
    "QLinearConv": (3, 5),
    "QGemm": (3, 5),
    "QAttention": (1, 7),
    "DequantizeLinear": (0, 2),
}
#: through which quantized rows of a table reach DequantizeLinear
_LOOKUPS = ("Gather", "Transpose", "Reshape", "Identity")
#: operator -> its inputs with scales and zero points
_SCALES = {
    "DequantizeLinear": (1, 2),
    "QuantizeLinear": (1, 2),
    "MatMulNBits": (2, 3),
    "GatherBlockQuantized": (2, 3),
    "QMoE": (3, 6, 9, 11, 12, 13),
}
#: inputs of QMoE with the weights of experts [E, rows, bytes], each before its scales
_EXPERTS = (2, 5, 8)
#: elements of integers that may be a weight
_LEAST = 64
_INTEGERS = (ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT4, ir.DataType.UINT4)


@dataclass(frozen=True)
class Weight:
    """One weight of a graph.

    Attributes:
        name: the initializer's, or the Constant's output.
        shape: of the matrix that it stands for.
        bits: 4 or 8 of a quantized one, 16 of a half-precision one, else 32.
        scaled: ``load`` has the scales of a quantized weight; without, rows are right up to a factor.
        load: reads it.
        node: the first node that reads it.
        scales: of a quantized one, if they are known.
    """

    name: str
    shape: tuple[int, ...]
    bits: int
    scaled: bool
    load: Callable[[], Array]
    node: ir.Node | None
    scales: Array | None = None

    @property
    def step(self) -> float:
        """The root mean square of what rounding to multiples of the scales changes; 0 where they are not known."""
        if self.scales is None or not self.scales.size:
            return 0.0
        return float(np.sqrt(np.mean(np.square(self.scales.astype(np.float64))) / 12))


def weights(graph: ir.Graph) -> Iterator[Weight]:
    """All floating-point and quantized constants of more than one element, in bodies too."""
    for value in _constants(graph):
        tensor = ir.convenience.get_const_tensor(value)
        if tensor is None or tensor.size < 2:
            continue
        users = [(node, index) for node, index in value.uses()]
        if users and all(index in _SCALES.get(node.op_type, ()) for node, index in users):
            continue
        node = users[0][0] if users else None
        shape = tuple(tensor.shape.numpy())
        name = value.name or "constant"
        if tensor.dtype in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
            yield Weight(name, shape, 32, True, tensor.numpy, node)
        elif tensor.dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16):
            yield Weight(name, shape, 16, True, tensor.numpy, node)
        elif tensor.dtype in _INTEGERS:
            yield from _quantized(name, tensor, users)


def _constants(graph: ir.Graph) -> Iterator[ir.Value]:
    for body in (graph, *graph.subgraphs()):
        yield from body.initializers.values()
        for node in body:
            if node.op_type == "Constant" and not node.domain:
                yield node.outputs[0]


def _quantized(name: str, tensor: ir.TensorProtocol, users: list[tuple[ir.Node, int]]) -> Iterator[Weight]:
    """A quantized weight by the operator that reads it; scales, zero points and indices are none."""
    for node, index in users:
        reader = node
        while reader.op_type in _LOOKUPS and index == 0 and len(uses := list(reader.outputs[0].uses())) == 1:
            reader, index = uses[0]
        if reader.op_type in ("MatMulNBits", "GatherBlockQuantized") and index == (reader.op_type == "MatMulNBits"):
            blocks = _of_blocks(name, tensor, reader)
            if blocks is not None:
                yield blocks
            return
        if reader.op_type == "QMoE" and index in _EXPERTS and (experts := _of_experts(name, tensor, reader, index)):
            yield experts
            return
        if _QUANTIZED.get(reader.op_type, (None, 0))[0] == index:
            scaled = reader.op_type == "DequantizeLinear" and _array(reader, 1) is not None
            bits = 4 if tensor.dtype in (ir.DataType.INT4, ir.DataType.UINT4) else 8
            shape = tuple(tensor.shape.numpy())
            scales = _array(reader, 1) if scaled else None
            yield Weight(name, shape, bits, scaled, partial(_dequantized, tensor, reader), node, scales)
            return
    # written out as Cast, Sub and Mul: rows are right up to a factor
    if len(tensor.shape) > 1 and tensor.size >= _LEAST:
        yield Weight(
            name, tuple(tensor.shape.numpy()), 8, False, lambda: _centred(tensor), users[0][0] if users else None
        )


def _centred(tensor: ir.TensorProtocol) -> Array:
    """Integers without their zero point: weights are 0 in the mean."""
    values = tensor.numpy().astype(np.float32)
    return values - np.round(values.mean()) if tensor.dtype in (ir.DataType.UINT8, ir.DataType.UINT4) else values


def _array(node: ir.Node, index: int) -> Array | None:
    value = node.inputs[index] if len(node.inputs) > index else None
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    return None if tensor is None else tensor.numpy()


def _dequantized(tensor: ir.TensorProtocol, reader: ir.Node) -> Array:
    """(q - zero) * scale; per tensor, per axis or by blocks. Without scales, unless DequantizeLinear reads it."""
    zero = _array(reader, _QUANTIZED[reader.op_type][1])
    scale = _array(reader, 1) if reader.op_type == "DequantizeLinear" else None
    axis = reader.attributes.get_int("axis", 1) or 0
    block = reader.attributes.get_int("block_size", 0) or 0
    values = tensor.numpy().astype(np.float32)
    axis = axis if -values.ndim <= axis < values.ndim else 0

    def spread(array: Array) -> Array:
        array = array.astype(np.float32)
        if array.ndim == values.ndim and block:
            return np.repeat(array, block, axis)[tuple(slice(size) for size in values.shape)]
        if array.size == 1 or array.ndim != 1:
            return array.reshape(()) if array.size == 1 else array
        shape = [1] * values.ndim
        # zero points of MatMulInteger are per column
        place = axis if array.size == values.shape[axis] else values.ndim - 1
        shape[place] = array.size
        return array.reshape(shape) if array.size == values.shape[place] else array.reshape(-1)[:1]

    values = values if zero is None else values - spread(zero)
    return values if scale is None else values * spread(scale)


def _of_blocks(name: str, tensor: ir.TensorProtocol, node: ir.Node) -> Weight | None:
    """The weight of MatMulNBits, [N, K], or of GatherBlockQuantized; None if it has no constant scales."""
    bits = node.attributes.get_int("bits", 4) or 4
    size = node.attributes.get_int("block_size", 128) or 128
    scale, zero = _array(node, 2), _array(node, 3)
    if bits not in (4, 8) or scale is None or (scale.size and size < 2):
        return None
    shape = tuple(tensor.shape.numpy())
    if node.op_type == "MatMulNBits":
        rows, columns = node.attributes.get_int("N", 0) or 0, node.attributes.get_int("K", 0) or 0
    else:
        packed = tensor.dtype == ir.DataType.UINT8 and bits == 4
        rows, columns = int(np.prod(shape[:-1])), shape[-1] * (2 if packed else 1)
    blocks = -(-columns // size)
    if rows < 1 or columns < 1 or scale.size != rows * blocks:
        return None

    def load() -> Array:
        data = tensor.numpy().reshape(rows, -1)
        values = _nibbles(data)[:, : blocks * size] if bits == 4 and data.dtype == np.uint8 else data
        values = values.astype(np.float32)
        values = np.pad(values, ((0, 0), (0, blocks * size - values.shape[1]))).reshape(rows, blocks, size)
        middle = np.float32(1 << (bits - 1)) if data.dtype == np.uint8 else np.float32(0)
        values -= middle if zero is None else _zeros(zero, rows, blocks, bits)
        values *= scale.astype(np.float32).reshape(rows, blocks, 1)
        return values.reshape(rows, blocks * size)[:, :columns]

    return Weight(name, (rows, columns), bits, True, load, node, scale)


def _of_experts(name: str, tensor: ir.TensorProtocol, node: ir.Node, index: int) -> Weight | None:
    """A weight of QMoE, [E, rows, K]; None if it has zero points, or scales that are not of blocks."""
    bits, size = (node.attributes.get_int(name, 0) or 0 for name in ("expert_weight_bits", "block_size"))
    scale = _array(node, index + 1)
    count, rows, stored = tensor.shape.numpy()
    columns = stored * 8 // bits if bits in (4, 8) else 0
    if (
        scale is None
        or size < 1
        or scale.shape != (count, rows, columns // size)
        or len(node.inputs) > max(_EXPERTS) + 2
    ):
        return None

    interleaved = index == _EXPERTS[0] and node.attributes.get_int("swiglu_fusion", 0) == 1

    def load() -> Array:
        data = tensor.numpy().reshape(count * rows, -1)
        values = (_nibbles(data) if bits == 4 else data).astype(np.float32) - np.float32(1 << (bits - 1))
        scaled: Array = values.reshape(count, rows, -1, size) * scale.astype(np.float32)[..., None]
        if interleaved:  # a gate's row before each row of the other half
            scaled = scaled.reshape(count, rows // 2, 2, -1).swapaxes(1, 2)
        return scaled.reshape(count, rows, columns)

    return Weight(name, (count, rows, columns), bits, True, load, node, scale)


def _zeros(zero: Array, rows: int, blocks: int, bits: int) -> Array:
    """Zero points of blocks, [rows, blocks, 1]: floats, or integers packed as the data is."""
    if zero.dtype == np.uint8 and bits == 4 and zero.size != rows * blocks:
        zero = _nibbles(zero.reshape(rows, -1))[:, :blocks]
    return zero.astype(np.float32).reshape(rows, blocks, 1)


def _nibbles(data: Array) -> Array:
    """Two values of 4 bits in each byte, the lower one first."""
    return np.stack([data & 15, data >> 4], axis=-1).reshape(data.shape[0], -1)
