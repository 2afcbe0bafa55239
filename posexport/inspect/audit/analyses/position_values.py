"""Positions, and distances and angles that arithmetic computes from them; no rows of tables, no hidden states."""

from collections.abc import Iterable, Iterator

import onnx_ir as ir

from posexport.graph.dataflow import reachable
from posexport.inspect.audit.analyses.roles import Roles
from posexport.inspect.audit.analyses.scalars import MOVES
from posexport.inspect.audit.analyses.sizes import Sizes

#: operators of positions and distances, which are integers, and the inputs with the elements
_DISTANCES = {
    **dict.fromkeys(MOVES, (0,)),
    **dict.fromkeys(("Add", "Sub", "Min", "Max", "Concat"), (0, 1)),
    **dict.fromkeys(("Neg", "Abs", "Cast", "CastLike", "Clip", "Split"), (0,)),
    "Where": (1, 2),
}
#: and of angles: products with frequencies
_ANGLES = {
    **_DISTANCES,
    **dict.fromkeys(("Mul", "Div", "MatMul", "Einsum"), (0, 1)),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), (0,)),
}
_INTEGERS = (ir.DataType.INT64, ir.DataType.INT32)


def origins(value: ir.Value, roles: Roles, *, angles: bool = False) -> list[ir.Value]:
    """The ranges, counts of tokens and position ids that a value is computed from; empty: it is no position."""
    return [source for source in steps(value, angles=angles) if _is_origin(source, roles)]


def steps(value: ir.Value, *, angles: bool = False) -> Iterator[ir.Value]:
    """``value`` and the values that arithmetic computes it from."""
    through = _ANGLES if angles else _DISTANCES

    def onward(current: ir.Value) -> Iterable[ir.Value | None]:
        node = current.producer()
        places = () if node is None or node.domain else through.get(node.op_type, ())
        return [node.inputs[place] for place in places if node is not None and place < len(node.inputs)]

    return reachable([value], onward)


def largest(origin: ir.Value, sizes: Sizes) -> int | None:
    """The number of positions of a range or count, if it is the same in every call."""
    shape = sizes.of(origin)
    lengths = [size for size in shape or () if isinstance(size, int)]
    return max(lengths, default=1) if shape and len(lengths) == len(shape) else None


def _is_origin(value: ir.Value, roles: Roles) -> bool:
    node = value.producer()
    if node is None or node.domain:
        return value in roles.positions
    if node.op_type == "CumSum":
        # sums of activations (state-space models) are no positions
        summed = node.inputs[0]
        before = None if summed is None else summed.producer()
        cast = before.inputs[0] if before is not None and before.op_type == "Cast" else None
        return any(v is not None and v.dtype in (*_INTEGERS, ir.DataType.BOOL) for v in (value, summed, cast))
    return node.op_type == "Range"
