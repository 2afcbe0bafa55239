"""What the values of a graph are computed from: the rules, operator by operator.

They are written apart from those by which posexport itself chooses types (`posexport.precision.half`), which they are
to check.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import onnx_ir as ir

HALVES = frozenset((ir.DataType.FLOAT16, ir.DataType.BFLOAT16))


class Origin(IntEnum):
    """Where a value's numbers come from; of several operands the greatest."""

    #: numbers in the graph's text
    CONSTANT = 0
    #: parameters, and what is computed from them alone
    PARAMETER = 1
    #: rows of parameters that positions choose: their numbers are those of the parameters
    ROWS = 2
    #: one of two: masks, comparisons
    FLAG = 3
    #: lengths, positions, distances, and what is computed from them: angles, logarithms, slopes times distances
    POSITION = 4
    #: what tokens say: embeddings and all after them
    ACTIVATION = 5


@dataclass(frozen=True)
class Traced:
    """A value's ``origin``; ``size``: elements of the largest parameter in it; ``narrow``: that has 16 bits."""

    origin: Origin
    size: int = 0
    narrow: bool = False


#: they move or choose among what they get
MOVES = frozenset(
    [
        *("Reshape", "Transpose", "Slice", "Gather", "GatherElements", "GatherND", "Unsqueeze", "Squeeze", "Expand"),
        *("Identity", "Flatten", "Tile", "Split", "DepthToSpace", "SpaceToDepth", "Trilu", "Pad", "Where", "Concat"),
        *("ScatterElements", "ScatterND", "TensorScatter", "Compress", "ReverseSequence"),
    ]
)
#: of these the operands from so many on say where, not what
_PLACES = {
    **dict.fromkeys(("Reshape", "Slice", "Unsqueeze", "Squeeze", "Expand", "Tile", "Split", "Trilu", "Compress"), 1),
    **dict.fromkeys(("Gather", "GatherElements", "GatherND", "ReverseSequence", "TopK", "OneHot", "CumSum"), 1),
    **dict.fromkeys(("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSumSquare"), 1),
}
_SIZES = frozenset(("Shape", "Size"))
_CHOOSING = frozenset(("Gather", "GatherElements", "GatherND"))
#: lengths and places
_COUNTS = frozenset(("NonZero", "ArgMax", "ArgMin", "Shape", "Size", "Range"))
#: how many there are of what is marked
_SUMS = frozenset(("CumSum", "ReduceSum"))
#: a layer of parameters makes an activation of what enters it, if it is as large as a layer's
_LAYERS = frozenset(("MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum", "FusedMatMul"))
#: elements of the largest parameter that counts as one of the position encoding itself
SMALL = 1 << 14


def numbers(node: ir.Node) -> Sequence[ir.Value | None]:
    """The operands whose numbers become those of the result."""
    if node.op_type in _SIZES:
        return ()
    if node.op_type == "Where":
        return node.inputs[1:]
    if node.op_type == "Pad":
        return [value for index, value in enumerate(node.inputs) if index in (0, 2)]
    if node.op_type in ("ScatterElements", "ScatterND", "TensorScatter"):
        return [value for index, value in enumerate(node.inputs) if index != (2 if "Tensor" in node.op_type else 1)]
    return node.inputs[: _PLACES.get(node.op_type)]


def result(node: ir.Node, operands: Sequence[Traced], places: Sequence[Traced], dtype: ir.DataType | None) -> Traced:
    """What an output of ``node`` is, from the operands that `numbers` names and all others."""
    size = max((each.size for each in operands), default=0)
    narrow = any(each.narrow and each.size == size for each in operands)
    largest = max((each.origin for each in operands), default=Origin.CONSTANT)
    origin = largest
    if dtype == ir.DataType.BOOL:
        origin = Origin.FLAG
    elif largest < Origin.ACTIVATION and (
        node.op_type in _COUNTS or (node.op_type in _SUMS and largest == Origin.FLAG)
    ):
        origin = Origin.POSITION
    elif node.op_type in _LAYERS and any(
        each.origin in (Origin.PARAMETER, Origin.ROWS) and each.size > SMALL for each in operands
    ):
        origin = Origin.ACTIVATION
    elif node.op_type in _CHOOSING and largest <= Origin.ROWS:
        origin = _chosen(largest, places, dtype)
    elif node.op_type in ("Where", "OneHot") and largest <= Origin.CONSTANT:
        origin = Origin.FLAG
    return Traced(origin, size, narrow or (dtype in HALVES and origin <= Origin.ROWS))


def _chosen(of: Origin, places: Sequence[Traced], dtype: ir.DataType | None) -> Origin:
    """Rows of parameters: an embedding by tokens, a table by positions; integers of a table are places again."""
    by = max((each.origin for each in places), default=Origin.CONSTANT)
    if by == Origin.ACTIVATION:
        return Origin.ACTIVATION
    if by <= Origin.CONSTANT:
        return of
    return Origin.ROWS if dtype is None or dtype.is_floating_point() else Origin.POSITION
