"""Mistakes in quantized files: each changes a file in place, and answers whether there was something to change."""

from collections.abc import Callable, Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir

#: the weight that is broken: of the second layer, so that nothing shows at once
WHERE = ".1."
QUANTIZED = ("_int8", "_int4", "_bits4", "_bits8")


def _weights(model: ir.Model, *endings: str) -> Iterator[ir.Value]:
    for name, value in model.graph.initializers.items():
        if name.endswith(endings or QUANTIZED) and WHERE in name:
            yield value


def _set(value: ir.Value, array: np.ndarray) -> bool:
    old = np.asarray(value.const_value.numpy())
    value.const_value = ir.Tensor(array.astype(old.dtype), dtype=value.const_value.dtype, name=value.name)
    value.shape = ir.Shape(array.shape)
    return not np.array_equal(old, array.astype(old.dtype))


def _array(value: ir.Value) -> np.ndarray:
    return np.array(value.const_value.numpy())


def swapped_nibbles(model: ir.Model) -> bool:
    for value in _weights(model, "_bits4"):
        return _set(value, _array(value) << 4 | _array(value) >> 4)
    for value in _weights(model, "_int4"):
        array = _array(value).astype(np.int8)
        flat = array.reshape(-1)
        return _set(value, flat.reshape(-1, 2)[:, ::-1].reshape(array.shape))
    return False


def zero_off_by_one(model: ir.Model) -> bool:
    """Of a product's weights; of activations, where integers are multiplied."""
    for node in model.graph.all_nodes():
        weight = node.inputs[1] if len(node.inputs) > 1 else None
        if node.op_type in ("MatMulIntegerToFloat", "MatMulInteger") and WHERE in str(weight.name):
            place = 4 if node.op_type == "MatMulIntegerToFloat" else 2
            old = np.asarray(node.inputs[place].const_value.numpy())
            node.replace_input_with(place, _constant(model, "wrong_zero", (old - 1).astype(np.uint8)))
            return True
        if node.op_type == "MatMulNBits" and WHERE in str(weight.name):
            n, blocks = _array(node.inputs[2]).reshape(node.attributes["N"].as_int(), -1).shape
            bits = node.attributes["bits"].as_int()
            width = -(-blocks * bits // 8)
            zero = np.full((n, width), 0x99 if bits == 4 else 129, np.uint8)
            node.resize_inputs(4)
            node.replace_input_with(3, _constant(model, "wrong_zero", zero))
            return True
        if node.op_type == "DequantizeLinear" and WHERE in str(node.inputs[0].name):
            scale, whole = _array(node.inputs[1]), node.inputs[0].const_value
            zero = np.ones(scale.shape) if len(node.inputs) < 3 else _array(node.inputs[2]).astype(int) ^ 1
            node.resize_inputs(3)
            stored = ir.Tensor(zero.astype(whole.numpy().dtype), dtype=whole.dtype, name="wrong_zero")
            node.replace_input_with(2, _initializer(model, stored))
            return True
    return False


def neighbours_scale(model: ir.Model) -> bool:
    """One block's scale is that of the next."""
    for value in _weights(model, "_scale"):
        array = _array(value)
        if "row_scale" in str(value.name):
            continue
        flat = array.reshape(-1)
        # far enough apart to be seen in any scheme, as blocks of a weight are
        ratio = np.abs(np.log(np.abs(flat[1:] / flat[:-1])))
        flat[:-1][ratio.argmax()] = flat[1:][ratio.argmax()]
        return _set(value, flat.reshape(array.shape))
    return False


def last_block_dropped(model: ir.Model) -> bool:
    for value in _weights(model):
        array = _array(value)
        if array.ndim == 3:
            array[:, -1] = 0x88 if "_bits4" in str(value.name) else 128
        else:
            array = array.astype(np.int16)
            array[-(len(array) % 32 or 32) :] = 8 if value.const_value.dtype == ir.DataType.UINT4 else 0
        return _set(value, array)
    return False


def one_scale_for_all_rows(model: ir.Model) -> bool:
    changed = False
    for node in model.graph.all_nodes():
        if node.op_type in ("ReduceMax", "ReduceMin") and str(node.outputs[0].name).endswith(("_highest", "_lowest")):
            node.resize_inputs(1)
            changed = True
    return changed and not any(node.attributes.get_int("block_size", 0) for node in model.graph.all_nodes())


def smoothed_on_one_side(model: ir.Model) -> bool:
    """What one projection reads is divided, and its weights are not multiplied."""
    weight = next((v for v in _weights(model) if "feedforward.inner" in str(v.name)), None)
    if weight is None:
        return False
    product = next(user for user, _ in weight.uses())
    quantize = product.inputs[0].producer()
    if quantize is None or quantize.op_type != "QuantizeLinear":
        return False
    x = quantize.inputs[0]
    if x.producer() is not None and x.producer().op_type == "Div":
        x = x.producer().inputs[0]
    k = _array(weight).shape[0]
    factor = _constant(model, "one_side", np.where(np.arange(k) % 3, 1, 4).astype(np.float32))
    mul = ir.node("Mul", [x, factor], name="one_side")
    for user, place in list(x.uses()):
        if user is not mul and (user is quantize or user.op_type in ("ReduceMin", "ReduceMax", "Div")):
            user.replace_input_with(place, mul.outputs[0])
    first = min(model.graph.index(user) for user, _ in mul.outputs[0].uses()) if hasattr(model.graph, "index") else None
    if first is None:
        producer = x.producer()
        model.graph.insert_after(producer, mul)
    else:
        model.graph.insert_before(model.graph[first], mul)
    return True


def keys_for_values(model: ir.Model) -> bool:
    """K and V of one layer are exchanged, weights, scales and biases."""
    changed = False
    values = dict(model.graph.initializers)
    for name, key in values.items():
        other = values.get(name.replace(".key.", ".value."))
        if WHERE in name and ".key." in name and other is not None and key.shape == other.shape:
            old = _array(key)
            _set(key, _array(other))
            changed |= _set(other, old)
    return changed


def table_of_positions_quantized(model: ir.Model) -> bool:
    for node in list(model.graph.all_nodes()):
        table = node.inputs[0] if node.op_type == "Gather" else None
        if table is None or table.const_value is None or len(table.shape) != 2 or "token" in str(table.name):
            continue
        array = _array(table)
        if array.dtype != np.float32 or ("position" not in str(table.name) and "encoding" not in str(table.name)):
            continue
        scale = np.abs(array).max(1, keepdims=True) / 127
        whole = _constant(model, "table_int8", np.rint(array / scale).astype(np.int8))
        scales = _constant(model, "table_scale", scale.astype(np.float32))
        gathers = [ir.node("Gather", [each, node.inputs[1]], {"axis": 0}) for each in (whole, scales)]
        cast = ir.node("Cast", [gathers[0].outputs[0]], {"to": 1})
        mul = ir.node("Mul", [cast.outputs[0], gathers[1].outputs[0]])
        node.graph.insert_before(node, [*gathers, cast, mul])
        ir.convenience.replace_all_uses_with(node.outputs[0], mul.outputs[0])
        node.graph.remove(node, safe=True)
        return True
    return False


def bias_of_a_head_lost(model: ir.Model) -> bool:
    for name, value in model.graph.initializers.items():
        if WHERE in name and "bias" in name and ("query" in name or "value" in name) and value.const_value is not None:
            array = _array(value)
            array[:8] = 0
            return _set(value, array)
    return False


def order_not_undone(model: ir.Model) -> bool:
    """Rows of a weight in another order than what they multiply, as GPTQ leaves them without its last step."""
    for value in _weights(model):
        array = _array(value)
        rng = np.random.default_rng(0)
        if array.ndim == 3:
            flat = array.reshape(len(array), -1)
            return _set(value, flat[:, rng.permutation(flat.shape[1])].reshape(array.shape))
        return _set(value, array[rng.permutation(len(array))])
    return False


MUTANTS: tuple[Callable[[ir.Model], bool], ...] = (
    swapped_nibbles,
    zero_off_by_one,
    neighbours_scale,
    last_block_dropped,
    one_scale_for_all_rows,
    smoothed_on_one_side,
    keys_for_values,
    table_of_positions_quantized,
    bias_of_a_head_lost,
    order_not_undone,
)


def broken(model: Path, mutant: Callable[[ir.Model], bool], to: Path) -> bool:
    """Write a broken copy; False where there is nothing to break in it."""
    loaded = ir.load(model)
    if not mutant(loaded):
        return False
    ir.save(loaded, to)
    onnx.checker.check_model(str(to))
    return True


def _constant(model: ir.Model, name: str, array: np.ndarray) -> ir.Value:
    return _initializer(model, ir.tensor(array, name=name))


def _initializer(model: ir.Model, tensor: "ir.TensorProtocol") -> ir.Value:
    value = ir.Value(name=tensor.name, const_value=tensor, type=ir.TensorType(tensor.dtype), shape=tensor.shape)
    model.graph.register_initializer(value)
    return value


assert ml_dtypes  # arrays of int4 have its type
