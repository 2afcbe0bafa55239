"""One element of a value that is computed elementwise, from one element of each input: masks and first positions."""

from collections.abc import Callable, Mapping
from math import exp, inf, isnan, log, nan, sqrt

import numpy as np
import onnx_ir as ir

#: operators that move elements and change none; of all inputs the first has the elements
MOVES = frozenset(
    [
        *("Identity", "Unsqueeze", "Squeeze", "Reshape", "Expand", "Tile", "Transpose", "Flatten", "Slice", "Gather"),
        *("GatherND", "GatherElements"),
    ]
)
_UNARY: Mapping[str, Callable[[float], float]] = {
    "Neg": lambda x: -x,
    "Not": lambda x: float(not x),
    "Abs": abs,
    "Floor": lambda x: float(np.floor(x)),
    "Exp": exp,
    "Log": lambda x: log(x) if x > 0 else (-inf if x == 0 else nan),
    "Sqrt": lambda x: sqrt(x) if x >= 0 else nan,
}
_BINARY: Mapping[str, Callable[[float, float], float]] = {
    "Add": lambda x, y: x + y,
    "Sub": lambda x, y: x - y,
    "Mul": lambda x, y: x * y,
    "Div": lambda x, y: x / y if y else nan,
    "Pow": lambda x, y: x**y if x > 0 else nan,
    "Min": min,
    "Max": max,
    "And": lambda x, y: float(bool(x) and bool(y)),
    "Or": lambda x, y: float(bool(x) or bool(y)),
    "Xor": lambda x, y: float(bool(x) != bool(y)),
    "Equal": lambda x, y: float(x == y),
    "Less": lambda x, y: float(x < y),
    "LessOrEqual": lambda x, y: float(x <= y),
    "Greater": lambda x, y: float(x > y),
    "GreaterOrEqual": lambda x, y: float(x >= y),
}
_DEPTH = 40


def element(value: ir.Value | None, leaves: Callable[[ir.Value], float | None], depth: int = _DEPTH) -> float | None:
    """The element of ``value`` where ``leaves`` returns elements of some values; constants have one value everywhere.

    None if anything else than elementwise operators and movements of elements leads to it, or if it is no number.
    """
    if value is None or not depth:
        return None
    for known in (leaves(value), _constant(value)):
        if known is not None:
            return known
    node = value.producer()
    if node is None or node.domain:
        return None

    def operand(place: int) -> float | None:
        return element(node.inputs[place], leaves, depth - 1) if place < len(node.inputs) else None

    result = _apply(node, operand)
    return None if result is None or isnan(result) else result


def is_infinite(value: ir.Value | None) -> bool:
    """Whether a constant is -inf in its type."""
    number = element(value, lambda _: None)
    if value is None or number is None:
        return False
    with np.errstate(over="ignore"):
        return bool((np.float16(number) if value.dtype == ir.DataType.FLOAT16 else np.float32(number)) == -inf)


def _apply(node: ir.Node, operand: Callable[[int], float | None]) -> float | None:
    """The element that an operator computes from elements of its inputs."""
    kind, first = node.op_type, operand(0)
    if first is None or kind in MOVES:
        return first
    if kind == "Where":
        return operand(1) if first else operand(2)
    if kind == "Cast":
        return float(bool(first)) if node.attributes.get_int("to", 0) == ir.DataType.BOOL else first
    if kind in _UNARY:
        return _UNARY[kind](first)
    second = operand(1) if kind in _BINARY else None
    return None if second is None else _BINARY[kind](first, second)


def _constant(value: ir.Value) -> float | None:
    """The value that all elements of a small constant have."""
    tensor = None if value.is_graph_input() else ir.convenience.get_const_tensor(value)
    if tensor is None or not 0 < tensor.size <= 1024 or tensor.dtype == ir.DataType.STRING:
        return _filled(value)
    array = tensor.numpy().reshape(-1)
    return float(array[0]) if bool((array == array[0]).all()) else None


def _filled(value: ir.Value) -> float | None:
    """The value that a ConstantOfShape fills its output with."""
    node = value.producer()
    if node is None or node.op_type != "ConstantOfShape" or node.domain:
        return None
    filling = node.attributes.get("value")
    return float(filling.as_tensor().numpy().reshape(-1)[0]) if filling is not None else 0.0
