"""Quantized weights of a file and the constants that they are read from. Shape letters: N channels, K inputs, B blocks.

Constants are traced through operators that only move them; DequantizeLinear stores a weight by tensor, by channel or in
blocks.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from posexport.errors import PosexportError
from posexport.sources import memory_mapped

Array = NDArray[Any]
Floats = NDArray[np.float64]


#: numbers of a weight that are made real at a time
_AT_ONCE = 1 << 18


class StoredError(PosexportError):
    """A stored weight is not the definition's: a failed proof, in one sentence that names the weight."""


@dataclass(frozen=True)
class Rounding:
    """How a product rounds what it multiplies.

    Attributes:
        kind: ``exact``: not at all; ``rows``: to uint8 about ``zero``, with a scale for each row that fits its largest
            value; ``static``: to uint8 about ``zero`` in steps of ``step``; ``blocks``: to int8, symmetric, with a
            scale for every ``size`` values of a row, which are in the order of ``order``; ``float``: not at all, and
            the weight is not the stored one but the definition's, which the file has too.
    """

    kind: Literal["exact", "rows", "static", "blocks", "float"] = "exact"
    zero: int = 0
    step: float = 0.0
    size: int = 0
    order: Array | None = field(default=None, compare=False)


@dataclass(frozen=True, eq=False)
class Stored:
    """A weight: (whole - zero) * scale.

    Attributes:
        name: of the tensor in its file.
        whole: whole numbers, [N, K].
        scale: [N, B], numbers of float32.
        zero: [N, B], the whole number that means 0.
        size: how many values of a channel share a scale; the last block may have fewer.
        lowest: the least whole number of its type.
        highest: the largest.
        order: [K], the inputs in the order of the blocks, by which a Gather brings them there; None: as they are.
    """

    name: str
    whole: "Array | Packed"
    scale: Floats
    zero: Floats
    size: int
    lowest: int
    highest: int
    order: Array | None = None

    @property
    def scale_error(self) -> float:
        """What each scale may err, of itself: where all are float16 numbers, values were rounded before they were."""
        with np.errstate(over="ignore"):
            return 2.0**-11 if (self.scale.astype(np.float16) == self.scale).all() else 0.0

    @property
    def blocks(self) -> Array:
        """[K]: which block each value of a channel is in."""
        blocks = np.arange(self.whole.shape[1]) // self.size
        return blocks if self.order is None else blocks[np.argsort(self.order)]

    def gathered(self, order: Array) -> "Stored":
        """The same product, as a weight of inputs before a Gather by ``order``."""
        back = np.argsort(order)
        whole = self.whole.gathered(back) if isinstance(self.whole, Packed) else self.whole[:, back]
        return replace(self, whole=whole, order=order)

    def real(self, channels: Any = slice(None), dtype: Any = np.float64) -> Array:
        """The real values, [channels, K]: exact in float64, in float32 the nearest numbers."""
        channels = np.arange(len(self.whole))[channels]
        real = np.empty((len(channels), self.whole.shape[1]), dtype)
        rows = max(1, _AT_ONCE // real.shape[1])  # so that their numbers stay in the processor's cache
        in_blocks = self.order is None and self.scale.shape[1] * self.size == real.shape[1]
        blocks = self.blocks  # one, a last one that has fewer, or scattered ones
        for start in range(0, len(channels), rows):
            some, wide = channels[start : start + rows], real[start : start + rows]
            wide[:] = self.whole.part(some) if isinstance(self.whole, Packed) else self.whole[some]
            zero, scale = (array[some].astype(dtype, copy=False) for array in (self.zero, self.scale))
            if in_blocks:
                by_block = wide.reshape(*scale.shape, self.size)
                by_block -= zero[..., None]
                by_block *= scale[..., None]
            else:
                wide -= zero[:, blocks]
                wide *= scale[:, blocks]
        if isinstance(self.whole, Packed):
            self.whole.release()
        return real

    def steps(self, channels: Array, values: Floats) -> Floats:
        """The distance of ``values`` [channels, K] above the stored ones, in steps."""
        scale = self.scale[channels]
        scale = np.where(scale == 0, np.finfo(np.float64).tiny, scale)
        wide = scale if scale.shape[1] == 1 else scale[:, self.blocks]
        return np.asarray((values - self.real(channels)) / wide)


@dataclass
class Use:
    """A stored weight and the nodes that read it.

    Attributes:
        roundings: of the products that it is multiplied in, in the order of the nodes; of a lookup none.
        biases: that is added to its products, [N]; None: it cannot be read off.
        places: of these products among all nodes.
        divided: by name, constants that divide the rows of activations that it multiplies (`factors.constants_of`).
    """

    stored: Stored
    lookup: bool
    roundings: list[Rounding] = field(default_factory=list)
    biases: list[Array | None] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    divided: dict[str, Array] = field(default_factory=dict)

    def is_like(self, other: "Use") -> bool:
        """Whether it is another reader of the same tensor."""
        return self.stored.name == other.stored.name and self.lookup == other.lookup


@dataclass(frozen=True, eq=False)
class FloatProduct:
    """A product with a matrix of floating point numbers: ``channels`` [N, K]; ``place``: among all nodes."""

    place: int
    channels: Array

    def has(self, rows: Array) -> bool:
        """Whether all ``rows`` [M, K] are among its channels."""
        if rows.shape[1] != self.channels.shape[1]:
            return False
        known = {channel.tobytes() for channel in np.ascontiguousarray(self.channels)}
        return all(row.tobytes() in known for row in np.ascontiguousarray(rows.astype(self.channels.dtype)))


def number_range(whole: Array) -> tuple[int, int]:
    """The least and the largest number of a type of 4 or 8 bits."""
    name = str(whole.dtype)
    most = 1 << (4 if name.endswith("int4") else 8)
    return (0, most - 1) if name.startswith("u") else (-most // 2, most // 2 - 1)


#: types of quantized numbers
_WHOLE = {ir.DataType.INT4, ir.DataType.UINT4, ir.DataType.INT8, ir.DataType.UINT8}


def constant(value: ir.Value | None, known: set[ir.Value] | None = None) -> Array | None:
    """The numbers of ``value``; None where they are not constant. ``known`` gets what holds them."""
    if value is None or value.is_graph_input():
        return None
    node = value.producer()
    if node is None or node.op_type == "Constant":
        tensor = ir.convenience.get_const_tensor(value)
        if tensor is None:
            return None
        if known is not None:
            known.add(value)
        return np.asarray(tensor.numpy())
    # scales of 16 bits that a provider reads in float32
    widens = node.op_type == "Cast" and node.attributes.get_int("to", 0) == ir.DataType.FLOAT
    if not widens and node.op_type not in ("Transpose", "Reshape", "Identity", "Squeeze", "Unsqueeze"):
        return None
    before = constant(node.inputs[0], known)
    if before is None:
        return None
    if node.op_type == "Transpose":
        perm = node.attributes.get("perm")
        return before.transpose(None if perm is None else list(perm.as_ints()))
    if node.op_type == "Reshape":
        shape = constant(node.inputs[1])
        return None if shape is None else before.reshape(shape.tolist())
    return before.astype(np.float32) if widens else before


def array_of(node: ir.Node, place: int) -> Array | None:
    """The constant that is a node's input there."""
    return constant(node.inputs[place]) if place < len(node.inputs) else None


def tables(nodes: Iterable[ir.Node], model: ir.Model) -> Iterator[ir.Value]:
    """All constants of two axes or more with quantized numbers."""
    for value in model.graph.initializers.values():
        if value.const_value is not None and value.const_value.dtype in _WHOLE and len(value.const_value.shape) > 1:
            yield value
    for node in nodes:
        if node.op_type == "Constant" and "value" in node.attributes:
            tensor = node.attributes["value"].as_tensor()
            if tensor.dtype in _WHOLE and len(tensor.shape) > 1:
                yield node.outputs[0]


def tensor_name(value: ir.Value | None) -> str:
    """The name of the tensor that ``value`` is computed from."""
    while value is not None and value.const_value is None and value.producer() is not None:
        producer = value.producer()
        assert producer is not None
        if not producer.inputs:
            break
        value = producer.inputs[0]
    return "" if value is None else str(value.name)


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
        scale, zero = (np.broadcast_to(array.reshape(-1, 1), (whole.shape[1 - across], 1)) for array in (scale, zero))
    elif across == 0:
        scale, zero = scale.T, zero.T
    matrix = (whole.T if across == 0 else whole).astype(np.int16)
    tensor = node.inputs[0]
    assert tensor is not None
    return Stored(tensor_name(tensor), matrix, scale, zero, size, *number_range(whole))


class Packed:
    """Whole numbers of few bits, [N, K], unpacked where channels are read: what a file maps takes no memory."""

    def __init__(self, packed: Array, bits: int, width: int, columns: Array | None = None) -> None:
        self._packed, self._bits, self._width, self._columns = packed, bits, width, columns
        self.shape = len(packed), width

    def __len__(self) -> int:
        return len(self._packed)

    def __getitem__(self, channels: Any) -> Array:
        some = self.part(channels)
        self.release()
        return some

    def part(self, channels: Any) -> Array:
        """As an index; pages of the file stay in memory until `release`."""
        some = unpacked(self._packed[channels], self._bits)[:, : self._width]
        return some if self._columns is None else some[:, self._columns]

    def release(self) -> None:
        """Give the memory of the file's pages back."""
        memory_mapped.release_array(self._packed)

    def gathered(self, columns: Array) -> "Packed":
        """Returns the columns in this order."""
        return Packed(self._packed, self._bits, self._width, columns)


#: ONNX Runtime's table of NF4 (contrib_ops/cpu/quantization/dequantize_blockwise_bnb4.h)
_NF4 = np.array(
    [
        *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
        *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
        *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
    ],
    np.float32,
)


class Coded(Packed):
    """Values of NF4 codes, [N, K], from -1 to 1; the first of two codes is the high half of its byte."""

    def part(self, channels: Any) -> Array:
        """As of all packed numbers."""
        low_first = super().part(channels)
        return _NF4[low_first.reshape(len(low_first), -1, 2)[..., ::-1].reshape(low_first.shape)]


def unpacked(packed: Array, bits: int) -> Array:
    """[N, numbers] of [N, bytes]; of two numbers of 4 bits in a byte the first is the low half."""
    if bits == 8:
        return packed
    if bits != 4:
        raise StoredError(f"a weight of {bits} bits is not known; 4 and 8 are")
    whole = np.empty((len(packed), 2 * packed.shape[1]), np.uint8)
    whole[:, 0::2], whole[:, 1::2] = packed & 15, packed >> 4
    return whole
