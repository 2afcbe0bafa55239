"""Reshapes to shapes with a constant that fits one length or one batch size only."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import onnx_ir as ir

from posexport.inspect.audit.analyses.sizes import Size, Sizes


@dataclass(frozen=True)
class FixedReshape:
    """A Reshape of a value with free axes to a shape with constants.

    Attributes:
        node: the Reshape.
        before: the sizes of its input.
        target: the shape; expressions of free axes are those of ``before``.
        number: the element of ``target`` that stands for a free axis.
        place: its index.
        merged: another free axis was merged into -1: the call runs at other sizes, with wrong outputs.
    """

    node: ir.Node
    before: tuple[Size, ...]
    target: tuple[Size, ...]
    number: int
    place: int
    merged: bool


def fixed_reshapes(nodes: Sequence[ir.Node], sizes: Sizes) -> Iterator[FixedReshape]:
    for node in nodes:
        if node.op_type != "Reshape" or node.domain or len(node.inputs) < 2:
            continue
        before, elements = sizes.of(node.inputs[0]), sizes.elements(node.inputs[1])
        if before is None or elements is None:
            continue
        target = tuple(size for size in elements if size is not None)
        if len(target) == len(elements) and (reshape := _fixed(node, before, target, sizes)):
            yield reshape


def _fixed(node: ir.Node, before: tuple[Size, ...], target: tuple[Size, ...], sizes: Sizes) -> FixedReshape | None:
    """The element of ``target`` that is a size of the example; None if the shape fits every size."""
    copied = set() if node.attributes.get_int("allowzero", 0) else {i for i, size in enumerate(target) if size == 0}
    rest = [size for axis, size in enumerate(before) if axis not in copied]
    computed = [size for size in target if isinstance(size, str)]
    # -1 beside sizes that are computed from the input: multiples of the constants fit
    if any(size not in rest for size in computed) or (computed and -1 in target):
        return None
    for size in computed:
        rest.remove(size)
    free = [size for size in rest if isinstance(size, str)]
    if not free or not all(map(sizes.is_free, free)):
        return None
    known = prod(sizes.factor(size) for size in rest)
    numbers = [(place, size) for place, size in enumerate(target) if isinstance(size, int) and size > 0]
    if -1 not in target or known % prod(size for _, size in numbers):
        place, number = _example(before, numbers, known)
        return FixedReshape(node, before, target, number, place, merged=False)
    # [B, T, ..] to [1, -1, ..]: rows of a batch become one long row
    one_row = target[0] == 1 and isinstance(before[0], str)
    if len(free) > 1 and one_row and len(target) >= len(before):
        return FixedReshape(node, before, target, 1, 0, merged=True)
    return None


def _example(before: tuple[Size, ...], numbers: Sequence[tuple[int, int]], known: int) -> tuple[int, int]:
    """The place and value of the number that no known size of the input explains."""
    for place, number in numbers:
        if place < len(before) and isinstance(before[place], str):
            return place, number
    for place, number in numbers:
        if number > 1 and known % number:
            return place, number
    return numbers[0] if numbers else (0, 1)
