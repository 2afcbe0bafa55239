"""Places where a free axis of the inputs meets a number: only one length computes there."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from posexport.tools.audit.analyses.sizes import Size, Sizes

#: operators whose inputs broadcast against each other
_BROADCASTING = frozenset(
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


def conflicts(nodes: Sequence[ir.Node], sizes: Sizes) -> Iterator[Conflict]:
    """All places, in the order of ``nodes``; what only follows from an earlier one is not known any more."""
    for node in nodes:
        inputs = [value for value in node.inputs if value is not None]
        if node.op_type in _BROADCASTING and (not node.domain or node.domain == "com.microsoft"):
            yield from _broadcast(node, _operands(node, inputs, sizes), sizes, one_fits=True)
        elif node.op_type == "Concat" and not node.domain:
            yield from _broadcast(node, _operands(node, inputs, sizes), sizes, one_fits=False)
        elif node.op_type in _PRODUCTS and len(inputs) > 1:
            shapes = [(value, shape) for value, shape in _operands(node, inputs[:2], sizes) if len(shape) > 1]
            leading = [(value, shape[:-2]) for value, shape in shapes]
            yield from _broadcast(node, leading, sizes, one_fits=True)
            if len(shapes) == 2:
                (first, left), (second, right) = shapes
                # the axis that is summed over
                yield from _pair(node, [(first, left[-1]), (second, right[-2])], sizes, axis=-1, one_fits=False)


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
    node: ir.Node,
    operands: Sequence[tuple[ir.Value, tuple[Size | None, ...]]],
    sizes: Sizes,
    *,
    one_fits: bool,
) -> Iterator[Conflict]:
    joined = node.attributes.get_int("axis") if node.op_type == "Concat" else None
    rank = max((len(shape) for _, shape in operands), default=0)
    for axis in range(-rank, 0):
        if joined is not None and axis == (joined if joined < 0 else joined - rank):
            continue
        column = [(value, shape[axis]) for value, shape in operands if len(shape) >= -axis]
        yield from _pair(node, column, sizes, axis=axis, one_fits=one_fits)


def _pair(
    node: ir.Node,
    column: "Sequence[tuple[ir.Value, Size | None]]",
    sizes: Sizes,
    *,
    axis: int,
    one_fits: bool,
) -> Iterator[Conflict]:
    """The conflict of the sizes of one axis, if there is one."""
    free = next((size for _, size in column if size is not None and sizes.is_free(size)), None)
    fixed = next(
        ((value, size) for value, size in column if isinstance(size, int) and size > 0 and (size > 1 or not one_fits)),
        None,
    )
    if free is not None and fixed is not None:
        yield Conflict(node, free, fixed[1], fixed[0], axis)
