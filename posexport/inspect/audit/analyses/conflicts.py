"""Places where a free axis of the inputs meets a number, where one length computes, and where two numbers meet."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from posexport.inspect.audit.analyses.sizes import Size, Sizes

#: operators whose inputs broadcast against each other
BROADCASTING = frozenset(
    [
        *("Add", "Sub", "Mul", "Div", "Pow", "Mod", "Max", "Min", "Sum", "Mean", "Where", "PRelu", "And", "Or", "Xor"),
        *("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "BiasGelu", "FastGelu", "QuickGelu"),
        *("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", "BitwiseAnd", "BitwiseOr", "Expand"),
    ]
)
_PRODUCTS = ("MatMul", "FusedMatMul", "MatMulInteger")


@dataclass(frozen=True)
class Conflict:
    """``node`` needs ``free``, an expression of free axes, to be ``number``. ``fixed``: the value with the number."""

    node: ir.Node
    free: Size
    number: int
    fixed: ir.Value
    axis: int


#: sizes that have to be equal, with the values that have them: the axis, and whether a size of 1 fits all others
_Column = tuple[ir.Node, list[tuple[ir.Value, Size | None]], int, bool]


def conflicts(nodes: Sequence[ir.Node], sizes: Sizes) -> Iterator[Conflict]:
    """All places, in the order of ``nodes``; what only follows from an earlier one is not known any more."""
    for node, column, axis, one_fits in _columns(nodes, sizes):
        free = next((size for _, size in column if size is not None and sizes.is_free(size)), None)
        fixed = next(_numbers(column, one_fits=one_fits), None)
        if free is not None and fixed is not None:
            yield Conflict(node, free, fixed[1], fixed[0], axis)


def unfit(nodes: Sequence[ir.Node], sizes: Sizes) -> Iterator[tuple[ir.Node, ir.Value, ir.Value]]:
    """Nodes with two values whose sizes are different numbers: no input fits."""
    for node, column, _, one_fits in _columns(nodes, sizes):
        numbers = list(_numbers(column, one_fits=one_fits))
        other = next((value for value, size in numbers[1:] if size != numbers[0][1]), None)
        if other is not None:
            yield node, numbers[0][0], other


def _numbers(column: "Sequence[tuple[ir.Value, Size | None]]", *, one_fits: bool) -> Iterator[tuple[ir.Value, int]]:
    for value, size in column:
        if isinstance(size, int) and size > 0 and (size > 1 or not one_fits):
            yield value, size


def _columns(nodes: Sequence[ir.Node], sizes: Sizes) -> Iterator[_Column]:
    """Every axis along which the inputs of a node have to have one size."""
    for node in nodes:
        inputs = [value for value in node.inputs if value is not None]
        if node.op_type in BROADCASTING and (not node.domain or node.domain == "com.microsoft"):
            yield from _broadcast(node, _operands(node, inputs, sizes), one_fits=True)
        elif node.op_type == "Concat" and not node.domain:
            yield from _broadcast(node, _operands(node, inputs, sizes), one_fits=False)
        elif node.op_type in _PRODUCTS and len(inputs) > 1:
            shapes = [(value, shape) for value, shape in _operands(node, inputs[:2], sizes) if len(shape) > 1]
            yield from _broadcast(node, [(value, shape[:-2]) for value, shape in shapes], one_fits=True)
            if len(shapes) == 2:
                (first, left), (second, right) = shapes
                # the axis that is summed over
                yield node, [(first, left[-1]), (second, right[-2])], -1, False


def _operands(
    node: ir.Node, inputs: Sequence[ir.Value], sizes: Sizes
) -> list[tuple[ir.Value, tuple[Size | None, ...]]]:
    """The inputs with known ranks; of Expand the second one's elements are sizes."""
    if node.op_type == "Expand":
        shape, target = sizes.of(inputs[0]), sizes.elements(inputs[1])
        return [(inputs[0], shape), (inputs[1], tuple(target))] if shape is not None and target is not None else []
    known = [(value, sizes.of(value)) for value in inputs]
    return [(value, shape) for value, shape in known if shape is not None]


def _broadcast(
    node: ir.Node, operands: Sequence[tuple[ir.Value, tuple[Size | None, ...]]], *, one_fits: bool
) -> Iterator[_Column]:
    joined = node.attributes.get_int("axis") if node.op_type == "Concat" else None
    rank = max((len(shape) for _, shape in operands), default=0)
    for axis in range(-rank, 0):
        if joined is None or axis != (joined if joined < 0 else joined - rank):
            yield node, [(value, shape[axis]) for value, shape in operands if len(shape) >= -axis], axis, one_fits
