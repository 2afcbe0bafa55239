"""Reads the quantized products and lookups of a file, in functions (inlined) and in bodies of control flow."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from posexport.base.spec import InputSpec
from posexport.graph.dataflow import content_values, reachable
from posexport.graph.precision.blocks.quantize import NF4
from posexport.graph.precision.blocks.stored_rows import ORDER
from posexport.proof.quantized.experts import experts
from posexport.proof.quantized.factors import constants_of
from posexport.proof.quantized.lookups import lookup
from posexport.proof.quantized.records import (
    Array,
    Coded,
    FloatProduct,
    Packed,
    Rounding,
    Stored,
    StoredError,
    Use,
    array_of,
    constant,
    dequantized,
    number_range,
    tables,
    tensor_name,
    unpacked,
)

#: ONNX Runtime's accuracy level at which MatMulNBits rounds what it multiplies (measured: 1.31.1, 4 and 8 bits)
ROUNDS_ACTIVATIONS = 4
#: positions of the bias among a node's inputs
_BIASES = {"Add": (0, 1), "BiasGelu": (1,), "FastGelu": (1,), "SkipLayerNormalization": (4,)}
_STEPS = ("Mul", "Cast")


def read(model: Path | bytes, inputs: Sequence[InputSpec]) -> tuple[list[Use], list[FloatProduct]]:
    """Every quantized weight, each once, with all of its readers; and the products with constants that are not.

    Args:
        model: a file, or its bytes.
        inputs: of the graph, with the roles that tell ids from positions.

    Raises:
        StoredError: something is quantized in a way that is not known.
    """
    uses: list[Use] = []
    float_products: list[FloatProduct] = []
    for use in each_use(model, inputs):
        if isinstance(use, FloatProduct):
            float_products.append(use)
            continue
        before = next((known_use for known_use in uses if known_use.is_like(use)), None)
        if before is None:
            uses.append(use)
        else:
            before.roundings += use.roundings
            before.biases += use.biases
            before.places += use.places
    return uses, float_products


def each_use(model: Path | bytes, inputs: Sequence[InputSpec]) -> Iterator[Use | FloatProduct]:
    """As `read`, one at a time, each reader of a weight by itself. Of external data, only what is read is in memory."""
    loaded = ir.from_proto(onnx.ModelProto.FromString(model)) if isinstance(model, bytes) else ir.load(model)
    InlinePass()(loaded)
    known: set[ir.Value] = set()
    divided: dict[str, set[str]] = {}
    content = content_values(loaded, {spec.name: spec.role for spec in inputs})
    for place, node in enumerate(loaded.graph.all_nodes()):
        product = _product(node, known) or lookup(node, known, content)
        found = experts(node, known) if product is None else [product]
        if not found:
            yield from _float_product(node, place)
        for use in found:
            use.places = [place] * len(use.roundings)
            name = use.stored.name
            if not use.lookup and divided.setdefault(name, set(use.divided)) != set(use.divided):
                raise StoredError(f"{name} multiplies rows that are divided by several factors")
            yield use
        del product, found
        _release(node)
    for value in tables(loaded.graph.all_nodes(), loaded):
        if value not in known:
            raise StoredError(f"{value.name} is quantized, and no product or lookup that is known reads it")


def _release(node: ir.Node) -> None:
    """Give back what of external data was read for ``node``."""
    producers = [value.producer() for value in node.inputs if value is not None]
    for value in [*node.inputs, *(before for each in producers if each is not None for before in each.inputs)]:
        if value is not None and isinstance(value.const_value, ir.ExternalTensor):
            with suppress(BufferError):  # a view of it is still held: its pages are the file's
                value.const_value.release()


def _float_product(node: ir.Node, place: int) -> Iterator[FloatProduct]:
    if node.op_type in ("MatMul", "Gemm"):
        array = array_of(node, 1)
        if array is not None and array.ndim == 2:
            yield FloatProduct(place, array if node.attributes.get_int("transB", 0) else array.T)


def _product(node: ir.Node, known: set[ir.Value]) -> Use | None:
    kind = {
        "MatMulIntegerToFloat": _integer_to_float,
        "MatMulInteger": _integer,
        "MatMulNBits": _few_bits,
        "MatMulBnb4": _codes,
        "MatMul": _dequantized,
        "Gemm": _dequantized,
    }.get(node.op_type)
    return None if kind is None else kind(node, known)


def _integer_to_float(node: ir.Node, known: set[ir.Value]) -> Use | None:
    stored = _by_channel(node, array_of(node, 3), known)
    bias = array_of(node, 6) if len(node.inputs) > 6 else _bias(node.outputs[0], len(stored.whole))
    return Use(stored, False, [_rounding(node)], [bias], divided=_divided(node))


def _integer(node: ir.Node, known: set[ir.Value]) -> Use | None:
    """Its result is cast and multiplied by the scale of each channel."""
    value, scale = node.outputs[0], None
    for _ in range(3):
        users = [user for user, _ in value.uses()]
        if len(users) != 1:
            break
        value = users[0].outputs[0]
        numbers = [constant(operand) for operand in users[0].inputs] if users[0].op_type == "Mul" else []
        scale = next((number for number in numbers if number is not None and number.ndim), scale)
        if scale is not None:
            break
    stored = _by_channel(node, scale, known)
    return Use(stored, False, [_rounding(node)], [_bias(value, len(stored.whole))], divided=_divided(node))


def _by_channel(node: ir.Node, scale: Array | None, known: set[ir.Value]) -> Stored:
    whole = constant(node.inputs[1], known)
    if whole is None or scale is None:
        raise StoredError(f"{node.op_type} {node.name} multiplies by a weight or a scale that is no constant")
    name, n = tensor_name(node.inputs[1]), whole.shape[1]
    at = {"MatMulIntegerToFloat": 5}.get(node.op_type, 3)
    zero = array_of(node, at) if len(node.inputs) > at else None
    zeros = np.zeros((n, 1)) if zero is None else np.broadcast_to(zero.reshape(-1, 1), (n, 1)).astype(np.float64)
    scales = np.broadcast_to(scale.reshape(-1, 1).astype(np.float64), (n, 1))
    return Stored(name, whole.T, scales, zeros, whole.shape[0], *number_range(whole))


def _few_bits(node: ir.Node, known: set[ir.Value]) -> Use | None:
    packed, scale = constant(node.inputs[1], known), array_of(node, 2)
    if packed is None or scale is None:
        raise StoredError(f"MatMulNBits {node.name} multiplies by a weight or a scale that is no constant")
    sizes = {name: node.attributes.get_int(name, 0) for name in ("K", "N", "bits", "block_size")}
    k, n, bits, size = sizes["K"], sizes["N"], sizes["bits"] or 4, sizes["block_size"]
    blocks = -(-k // size)
    whole = Packed(packed.reshape(n, -1), bits, k)
    zeros = array_of(node, 3) if len(node.inputs) > 3 else None
    if zeros is None:
        zero = np.broadcast_to(np.float64(1 << (bits - 1)), (n, blocks))
    elif zeros.dtype == np.uint8:
        zero = unpacked(zeros.reshape(n, -1), bits)[:, :blocks].astype(np.float64)
        known.add(node.inputs[3])  # type: ignore[arg-type]  # it is there
    else:
        zero = zeros.reshape(n, blocks).astype(np.float64)
    scales = scale.reshape(n, blocks)
    scales = scales if scales.dtype == np.float32 else scales.astype(np.float64)
    stored, order = _before_gather(
        node, Stored(tensor_name(node.inputs[1]), whole, scales, zero, size, 0, (1 << bits) - 1)
    )
    rounds = node.attributes.get_int("accuracy_level", 0) == ROUNDS_ACTIVATIONS
    bias = array_of(node, 5) if len(node.inputs) > 5 else _bias(node.outputs[0], n)
    return Use(stored, False, [Rounding("blocks", size=size, order=order) if rounds else Rounding()], [bias])


def _codes(node: ir.Node, known: set[ir.Value]) -> Use | None:
    """A product with codes of 4 bits, rows one after another."""
    packed, scale = constant(node.inputs[1], known), array_of(node, 2)
    if packed is None or scale is None:
        raise StoredError(f"MatMulBnb4 {node.name} multiplies by a weight or a scale that is no constant")
    if node.attributes.get_int("quant_type", -1) != NF4:
        raise StoredError(f"MatMulBnb4 {node.name} has codes that are not NF4")
    k, n, size = (node.attributes.get_int(name, 0) for name in ("K", "N", "block_size"))
    whole, scales = Coded(packed.reshape(n, -1), 4, k), scale.reshape(n, -1)
    stored = Stored(tensor_name(node.inputs[1]), whole, scales, np.zeros(scales.shape), size, 0, 15)
    return Use(stored, False, [Rounding()], [_bias(node.outputs[0], n)])


def _before_gather(node: ir.Node, stored: Stored) -> tuple[Stored, Array | None]:
    """The weight for inputs as they are before the Gather into the order of its blocks, and that order."""
    gather = _producer(node.inputs[0])
    while gather is not None and gather.op_type in ("Cast", "Unsqueeze"):
        gather = _producer(gather.inputs[0])
    if gather is None or gather.op_type != "Gather" or not tensor_name(gather.inputs[1]).endswith(ORDER):
        return stored, None
    order = constant(gather.inputs[1])
    if order is None or not np.array_equal(np.sort(order), np.arange(stored.whole.shape[1])):
        raise StoredError(f"{stored.name} reads inputs in an order that leaves some out")
    return stored.gathered(order), order


def _dequantized(node: ir.Node, known: set[ir.Value]) -> Use | None:
    """A product with what DequantizeLinear gives."""
    value = node.inputs[1]
    before, transposed = None if value is None else value.producer(), bool(node.attributes.get_int("transB", 0))
    if before is not None and before.op_type == "Transpose":
        transposed, before = not transposed, None if before.inputs[0] is None else before.inputs[0].producer()
    if before is None or before.op_type != "DequantizeLinear":
        return None
    stored = dequantized(before, known, across=1 if transposed else 0)
    if stored is None:
        return None
    # ONNX Runtime makes MatMulNBits of those along axis 0 if nothing else reads the weight, and sessions have the level
    # that rounds (`posexport.run.providers.numeric_options`)
    size, table = before.attributes.get_int("block_size", 0), before.inputs[0]
    fused = before.attributes.get_int("axis", 1) == 0 and size >= 16 and not transposed and node.op_type == "MatMul"
    fused = fused and table is not None and len(table.uses()) == len(before.outputs[0].uses()) == 1
    bias = array_of(node, 2) if len(node.inputs) > 2 else _bias(node.outputs[0], len(stored.whole))
    stored, order = _before_gather(node, stored)
    return Use(stored, False, [Rounding("blocks", size=size, order=order) if fused else Rounding()], [bias])


def _producer(value: ir.Value | None) -> ir.Node | None:
    return None if value is None else value.producer()


def _rounded_by(node: ir.Node) -> ir.Node | None:
    """The node, a QuantizeLinear, that an integer product reads."""
    producer = _producer(node.inputs[0])
    while producer is not None and producer.op_type in ("Reshape", "Transpose", "Identity"):
        producer = _producer(producer.inputs[0])
    return producer


def _divided(node: ir.Node) -> dict[str, Array]:
    """Constants that divide the activations which an integer product reads, before their scales."""
    rounded = _rounded_by(node)
    row = None if rounded is None else _producer(rounded.inputs[0])
    return constants_of(_producer(row.inputs[0]) if row is not None and row.op_type == "Div" else row)


def _rounding(node: ir.Node) -> Rounding:
    """Of the QuantizeLinear that an integer product reads."""
    producer = _rounded_by(node)
    at = 4 if node.op_type == "MatMulIntegerToFloat" else 2
    zero = array_of(node, at) if len(node.inputs) > at else np.array(0)
    if producer is None or producer.op_type != "QuantizeLinear" or zero is None or zero.size != 1:
        raise StoredError(f"{node.op_type} {node.name} multiplies what is rounded in a way that is not known")
    scale, offset = constant(producer.inputs[1]), _zero_of(producer)
    if offset is not None and offset != int(zero.reshape(-1)[0]):
        raise StoredError(
            f"{tensor_name(node.inputs[1])} is multiplied by activations about {offset} as if they were about {zero}"
        )
    divided = _producer(producer.inputs[0])
    if scale is not None and not (divided is not None and divided.op_type == "Div"):
        return Rounding("static", zero=int(zero.reshape(-1)[0]), step=float(scale.reshape(-1)[0]))
    divisor = divided.inputs[1] if divided is not None and divided.op_type == "Div" else producer.inputs[1]
    if not _of_row(divisor):
        raise StoredError(
            f"{tensor_name(node.inputs[1])} is multiplied by activations whose scale is not each row's own"
        )
    return Rounding("rows", zero=int(zero.reshape(-1)[0]))


def _of_row(scale: ir.Value | None) -> bool:
    """Whether ``scale`` comes from the largest and the lowest value along the last axis.

    The first one along that axis is both where there is no row, which ONNX Runtime then does not reduce.
    """
    between = ("Mul", "Max", "Neg")

    def before(value: ir.Value) -> Sequence[ir.Value | None]:
        node = value.producer()
        if node is None:
            return ()
        return node.inputs[:1] if _is_first(node) else node.inputs if node.op_type in between else ()

    extremes = 0
    for value in reachable([] if scale is None else [scale], before):
        node = value.producer()
        if node is None or node.op_type in ("Constant", *between) or _is_first(node):
            continue
        axes = array_of(node, 1) if node.op_type in ("ReduceMax", "ReduceMin") else None
        if axes is None or axes.reshape(-1).tolist() != [-1]:
            return False
        extremes += 1
    return extremes == 2


def _is_first(node: ir.Node) -> bool:
    """Whether a node gives the first value along the last axis."""
    if node.op_type != "Slice":
        return False
    return [None if (x := array_of(node, at)) is None else x.tolist() for at in (1, 2, 3)] == [[0], [1], [-1]]


def _zero_of(node: ir.Node) -> int | None:
    """The zero point of a QuantizeLinear: a constant, or the zero point by which a constant is quantized."""
    if len(node.inputs) < 3:
        return 0
    zero = constant(node.inputs[2])
    if zero is None:
        producer = node.inputs[2].producer() if node.inputs[2] is not None else None
        zero = None if producer is None or producer.op_type != "QuantizeLinear" else constant(producer.inputs[2])
    return None if zero is None or zero.size != 1 else int(zero.reshape(-1)[0])


def _bias(value: ir.Value, channels: int) -> Array | None:
    """The bias added to ``value``; None if there is no constant one."""
    for _ in range(3):
        users = [user for user, _ in value.uses()]
        if len(users) != 1:
            return None
        user = users[0]
        for place in _BIASES.get(user.op_type, ()):
            bias = constant(user.inputs[place]) if place < len(user.inputs) else None
            if bias is not None and bias.shape == (channels,):
                return bias
        if user.op_type not in _STEPS:
            return None
        value = user.outputs[0]
    return None
