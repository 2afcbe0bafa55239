"""Mistakes in a decoder's float32 or int4 graph of ten layers, each in one place. They change a model in memory."""

# all mutants take the same arguments, needed or not
# ruff: noqa: ARG001

from collections.abc import Callable, Mapping

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

#: numbers of parameters by name
Arrays = Mapping[str, NDArray[np.float32]]
FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16)
Mutant = Callable[[onnx.ModelProto, Arrays, str], bool]


def stored(model: onnx.ModelProto, arrays: Arrays, stack: str, layer: int) -> dict[str, TensorProto]:
    """Tensors of a layer by role: by name, or, of transposed weights, by what they hold."""
    prefix, found = f"{stack}.{layer}.", {}
    for tensor in model.graph.initializer:
        if tensor.name.startswith(prefix):
            found[tensor.name.removeprefix(prefix)] = tensor
        elif tensor.data_type in FLOATS and len(tensor.dims) == 2:
            transposed = numpy_helper.to_array(tensor).T
            for name, array in arrays.items():
                if (
                    name.startswith(prefix)
                    and array.shape == transposed.shape
                    and np.array_equal(array.astype(transposed.dtype), transposed)
                ):
                    found[name.removeprefix(prefix)] = tensor
    return found


def put(tensor: TensorProto, raw: bytes) -> bool:
    changed = tensor.raw_data != raw
    tensor.raw_data = raw
    return changed


def rewire(model: onnx.ModelProto, old: str, new: str, *, but: str = "") -> bool:
    """Nodes read ``new`` where they read ``old``, but the node that computes ``but``."""
    places = [
        (node, at)
        for node in model.graph.node
        for at, name in enumerate(node.input)
        if name == old and but not in node.output
    ]
    for node, at in places:
        node.input[at] = new
    return bool(places)


def layers_exchanged(model: onnx.ModelProto, arrays: Arrays, stack: str) -> bool:
    one, other = (stored(model, arrays, stack, layer) for layer in (3, 4))
    changed = False
    for role, tensor in one.items():
        if role not in other:  # int8 smooths some layers
            continue
        old = tensor.raw_data
        changed |= put(tensor, other[role].raw_data)
        put(other[role], old)
    return changed


def layer_twice(model: onnx.ModelProto, arrays: Arrays, stack: str) -> bool:
    one, other = (stored(model, arrays, stack, layer) for layer in (5, 6))
    return sum(put(other[role], tensor.raw_data) for role, tensor in one.items() if role in other) > 0  # each is put


def _residuals(model: onnx.ModelProto) -> list[str]:
    """Sums of the residual stream, two in each layer."""
    constants = {tensor.name for tensor in model.graph.initializer}
    products = {node.output[0] for node in model.graph.node if node.op_type == "MatMul"}
    return [
        node.output[0]
        for node in model.graph.node
        if node.op_type == "Add" and set(node.input) & products and not set(node.input) & constants
    ]


def last_layer_missing(model: onnx.ModelProto, arrays: Arrays, stack: str) -> bool:
    sums = _residuals(model)
    return len(sums) == 20 and rewire(model, sums[19], sums[17])


def a_layer_skipped(model: onnx.ModelProto, arrays: Arrays, stack: str) -> bool:
    sums = _residuals(model)
    return len(sums) == 20 and rewire(model, sums[9], sums[7])


def one_bit(model: onnx.ModelProto, arrays: Arrays, stack: str) -> bool:
    tensor = next(t for role, t in sorted(stored(model, arrays, stack, 7).items()) if "query.weight" in role)
    raw = bytearray(tensor.raw_data)
    raw[0] ^= 1
    return put(tensor, bytes(raw))


def one_scale(model: onnx.ModelProto, arrays: Arrays, stack: str) -> bool:
    for role, tensor in stored(model, arrays, stack, 7).items():
        if role.endswith("_scale"):
            array = numpy_helper.to_array(tensor).copy()
            array.flat[3] *= 1.25
            return put(tensor, array.tobytes())
    return False


def one_zero_point(model: onnx.ModelProto, arrays: Arrays, stack: str) -> bool:
    for node in model.graph.node:
        if node.op_type == "DequantizeLinear" and f"{stack}.7." in node.input[0]:
            weight, scale = (next(t for t in model.graph.initializer if t.name == name) for name in node.input[:2])
            zero = np.ones(scale.dims, np.int8)
            tensor = helper.make_tensor("wrong_zero", weight.data_type, scale.dims, zero.reshape(-1).tolist())
            model.graph.initializer.append(tensor)
            node.input.append("wrong_zero")
            return True
    return False


def another_layers_weight(model: onnx.ModelProto, arrays: Arrays, stack: str) -> bool:
    one, other = (stored(model, arrays, stack, layer) for layer in (2, 7))
    return sum(put(other[role], one[role].raw_data) for role in one if "query.weight" in role) > 0  # each is put


def another_base(model: onnx.ModelProto, arrays: Arrays, stack: str) -> bool:
    rotations = [node for node in model.graph.node if node.op_type == "HalfRotation"]
    if len(rotations) < 12:
        return False
    cosines = rotations[10].input[1]
    angle = next(node.input[0] for node in model.graph.node if cosines in node.output)
    while (cast := next((node for node in model.graph.node if angle in node.output), None)) and cast.op_type == "Cast":
        angle = cast.input[0]
    model.graph.initializer.append(numpy_helper.from_array(np.float32(0.5), "other_base"))
    place = list(model.graph.node).index(rotations[10])
    for op, inputs, output in (
        ("Mul", [angle, "other_base"], "other_angle"),
        ("Cos", ["other_angle"], "other_cos"),
        ("Sin", ["other_angle"], "other_sin"),
    ):
        model.graph.node.insert(place, helper.make_node(op, inputs, [output]))
        place += 1
    rotations[10].input[1], rotations[10].input[2] = "other_cos", "other_sin"
    return True


def heads_exchanged(model: onnx.ModelProto, arrays: Arrays, stack: str) -> bool:
    tensor = next((t for r, t in stored(model, arrays, stack, 4).items() if r == "attention.query.weight"), None)
    if tensor is None:
        return False
    array = numpy_helper.to_array(tensor).copy()
    array[:, :8], array[:, 8:16] = array[:, 8:16].copy(), array[:, :8].copy()
    return put(tensor, array.tobytes())


def final_norm_missing(model: onnx.ModelProto, arrays: Arrays, stack: str) -> bool:
    norm = next((node for node in model.graph.node if any("final_norm" in name for name in node.input)), None)
    return norm is not None and rewire(model, norm.output[0], norm.input[0])


def mask_dropped(model: onnx.ModelProto, arrays: Arrays, stack: str) -> bool:
    attention = [node for node in model.graph.node if node.op_type.endswith("CausalMaskedAttention")]
    model.graph.initializer.append(numpy_helper.from_array(np.float32(0), "nothing"))
    place = list(model.graph.node).index(attention[9])
    for at in (3, 5):
        model.graph.node.insert(place, helper.make_node("Mul", [attention[9].input[at], "nothing"], [f"no_mask_{at}"]))
    attention[9].input[3], attention[9].input[5] = "no_mask_3", "no_mask_5"
    return True


def a_word_beyond(model: onnx.ModelProto, arrays: Arrays, stack: str) -> bool:
    """A row of the embeddings that the reduced model lacks."""
    names = {node.input[0] for node in model.graph.node if node.op_type == "Gather"}
    tensor = next((t for t in model.graph.initializer if t.name in names and len(t.dims) == 2), None)
    if tensor is None or tensor.data_type not in FLOATS:
        return False
    raw = bytearray(tensor.raw_data)
    raw[-4] ^= 1
    return put(tensor, bytes(raw))


def states_exchanged(model: onnx.ModelProto, arrays: Arrays, stack: str) -> bool:
    one, other = "past_key_values.3.key", "past_key_values.4.key"
    return rewire(model, one, "kept") and rewire(model, other, one) and rewire(model, "kept", other)


def _factors(model: onnx.ModelProto) -> list[TensorProto]:
    return [t for t in model.graph.initializer if t.name.startswith("smoothing_") or t.name.endswith("_smooth")]


def a_factor_doubled(model: onnx.ModelProto, arrays: Arrays, stack: str) -> bool:
    """Of one channel, of activations that int8 divides by powers of two."""
    for tensor in _factors(model):
        array = numpy_helper.to_array(tensor).copy()
        array[np.flatnonzero(array)[7:8]] *= 2
        return put(tensor, array.tobytes())
    return False


def factors_exchanged(model: onnx.ModelProto, arrays: Arrays, stack: str) -> bool:
    for one in _factors(model):
        for other in _factors(model):
            if other.dims == one.dims and other.raw_data != one.raw_data:
                one.raw_data, other.raw_data = other.raw_data, one.raw_data
                return True
    return False


def factors_of_one(model: onnx.ModelProto, arrays: Arrays, stack: str) -> bool:
    """Weights that were multiplied by factors read activations that are not divided."""
    for tensor in _factors(model):
        if tensor.name.startswith("smoothing_"):
            return put(tensor, np.ones(tensor.dims, np.float32).tobytes())
    return False


def another_zero_point(model: onnx.ModelProto, arrays: Arrays, stack: str) -> bool:
    """Where rows are rounded and multiplied, but not where they are scaled."""
    names = {tensor.name for tensor in model.graph.initializer}
    if "zero_point" not in names:
        return False
    if "zero_point_24" not in names:
        model.graph.initializer.append(numpy_helper.from_array(np.uint8(24), "zero_point_24"))
    for node in model.graph.node:
        if node.op_type in ("QuantizeLinear", "MatMulInteger", "MatMulIntegerToFloat"):
            for at, name in enumerate(node.input):
                node.input[at] = "zero_point_24" if name == "zero_point" else name
    return True


def another_step(model: onnx.ModelProto, arrays: Arrays, stack: str) -> bool:
    for node in model.graph.node:
        if node.op_type == "Mul" and "step_of_127" in node.input and ".7." not in node.name:
            if all(tensor.name != "step_of_231" for tensor in model.graph.initializer):
                model.graph.initializer.append(numpy_helper.from_array(np.float32(1 / 231), "step_of_231"))
            node.input[list(node.input).index("step_of_127")] = "step_of_231"
            return True
    return False


#: of what int8 chooses for the activations of a layer
OF_ROWS: tuple[Mutant, ...] = (a_factor_doubled, factors_exchanged, factors_of_one, another_zero_point, another_step)
MUTANTS: tuple[Mutant, ...] = (
    layers_exchanged,
    layer_twice,
    last_layer_missing,
    a_layer_skipped,
    one_bit,
    one_scale,
    one_zero_point,
    another_layers_weight,
    another_base,
    heads_exchanged,
    final_norm_missing,
    mask_dropped,
    a_word_beyond,
    states_exchanged,
)
