"""Removes from a graph what int8 chooses for each layer by its activations, so that layers can be compared.

Rows of activations are divided by powers of two, in a node or in the normalisation before them, and are rounded about
one of two zero points: layers of one kind differ in both. What is removed is checked here: a row has one zero point,
and the weights that read it are the parameters times its powers of two (`Factors`).
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, numpy_helper

from posexport.parity.quantized.records import StoredError
from posexport.precision.calibration import DIVIDED, SMOOTHING
from posexport.precision.rows.activation_scales import PLAIN, ZERO_POINTS, highest_step
from posexport.precision.rows.activations import down, step, zero_point

Floats = NDArray[np.float32]

_ZERO_POINTS = {zero_point(zero): zero for zero in ZERO_POINTS}
_STEPS = {step(highest_step(zero)): zero for zero in ZERO_POINTS}
_LOWER = {down(zero): zero for zero in ZERO_POINTS if zero != PLAIN.zero}
#: constants of one zero point, and the zero point
_CONSTANTS = _ZERO_POINTS | _STEPS | _LOWER
_PLAIN = {
    zero_point(PLAIN.zero): np.uint8(PLAIN.zero),
    step(highest_step(PLAIN.zero)): np.float32(1 / highest_step(PLAIN.zero)),
}
_PRODUCTS = ("MatMulInteger", "MatMulIntegerToFloat")


def with_plain_rows(model: ModelProto) -> dict[str, list[str]]:
    """Give all rows the zero point 128 and no factors, in place.

    Returns:
        By the name of a stored weight, the constants that its activations were multiplied by, and the divided
        parameters of the normalisation that computes them.

    Raises:
        StoredError: a row is rounded about one zero point with the steps of another.
    """
    nodes = list(model.graph.node)
    _check_zero_points(nodes)
    factors = _factors(nodes)
    plain = zero_point(PLAIN.zero), step(highest_step(PLAIN.zero))
    names = dict.fromkeys(_ZERO_POINTS, plain[0]) | dict.fromkeys(_STEPS, plain[1])
    kept = []
    for node in nodes:
        if _smooths(node):
            names[node.output[0]] = names.get(node.input[0], node.input[0])
            continue
        copied = NodeProto()
        copied.CopyFrom(node)
        if node.op_type == "Mul" and node.input[1] in _LOWER:
            copied.op_type = "Neg"
            del copied.input[1]
        for at, name in enumerate(copied.input):
            copied.input[at] = names.get(name, name)
        kept.append(copied)
    del model.graph.node[:]
    model.graph.node.extend(kept)
    missing = {name for node in kept for name in node.input} - {tensor.name for tensor in model.graph.initializer}
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(value), name) for name, value in _PLAIN.items() if name in missing
    )
    return factors


def _smooths(node: NodeProto) -> bool:
    return node.op_type == "Mul" and node.input[1].startswith(SMOOTHING)


def _check_zero_points(nodes: Sequence[NodeProto]) -> None:
    """Raises StoredError where the constants that scale and round a row belong to several zero points."""
    producers = {output: node for node in nodes for output in node.output}
    of_value: dict[str, int] = dict(_CONSTANTS)
    for node in nodes:
        read = {
            "Mul": node.input if any(name in _CONSTANTS for name in node.input) else [],
            "Max": node.input,
            "Div": node.input[1:],
            "QuantizeLinear": node.input[1:],
        }.get(node.op_type, [])
        zeros = {of_value[name] for name in read if name in of_value}
        if node.op_type == "Neg" and node.input[0] in producers and producers[node.input[0]].op_type == "ReduceMin":
            zeros = {PLAIN.zero}
        if len(zeros) > 1:
            raise StoredError(f"{node.output[0]}: rows have the zero points {sorted(zeros)} at once, and need one")
        of_value |= {output: zero for output in node.output for zero in zeros}


def _factors(nodes: Sequence[NodeProto]) -> dict[str, list[str]]:
    producers = {output: node for node in nodes for output in node.output}
    factors: dict[str, list[str]] = {}
    for node in nodes:
        rounding = producers.get(node.input[0]) if node.op_type in _PRODUCTS else None
        if rounding is None or rounding.op_type != "QuantizeLinear":
            continue
        row = producers.get(rounding.input[0])
        if row is not None and row.op_type == "Div":
            row = producers.get(row.input[0])
        if row is None:
            continue
        divided = [row.input[1]] if _smooths(row) else [name for name in row.input if name.endswith(DIVIDED)]
        if factors.setdefault(node.input[1], divided) != divided:
            raise StoredError(f"{node.input[1]} multiplies rows that are divided by several factors")
    return factors


def undivided(name: str, array: Floats, parameters: Sequence[Floats]) -> Floats:
    """The one of ``parameters`` that ``array``, of a normalisation, is but for powers of two; else ``array``."""
    if not name.endswith(DIVIDED):
        return array
    for parameter in parameters:
        if parameter.shape != array.shape or ((parameter == 0) != (array == 0)).any():
            continue
        mantissa, _ = np.frexp(np.divide(array, parameter, out=np.ones_like(array), where=parameter != 0))
        if (mantissa == 0.5).all():
            return parameter
    return array


def factor(name: str, constants: Mapping[str, Floats], parameters: Sequence[Floats], size: int) -> Floats:
    """What the rows that a stored weight reads were divided by, [K]; not a number where they are 0 anyway.

    ``constants``: those of `with_plain_rows`, by name. Raises StoredError where these do not agree, or are no powers
    of two.
    """
    result = np.full(size, np.nan if constants else 1, np.float32)
    for constant, array in constants.items():
        if constant.startswith(SMOOTHING):
            divisor = 1 / array.reshape(-1)
        else:
            parameter = undivided(constant, array, parameters)
            divisor = np.divide(parameter, array, out=np.full_like(array, np.nan), where=array != 0)
        both = ~np.isnan(result) & ~np.isnan(divisor)
        mantissa, _ = np.frexp(divisor[~np.isnan(divisor)])
        if (result[both] != divisor[both]).any() or (mantissa != 0.5).any():
            raise StoredError(f"{name}: its activations are divided by {constant}, which is not what smooths them")
        result = np.where(np.isnan(result), divisor, result)
    return result
