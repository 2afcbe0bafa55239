"""The first or the last row of a value, computed from rows of its inputs."""

import onnx_ir as ir

from posexport.graph.builder import Builder
from posexport.graph.queries import sizes

#: operators that compute each element of their output from the elements at its place, broadcast
_NAMES = """Abs Add And Cast CastLike Ceil Clip Cos Div Elu Equal Erf Exp Floor Gelu Greater GreaterOrEqual HardSigmoid
Identity IsInf IsNaN LeakyRelu Less LessOrEqual Log Max Min Mod Mul Neg Not Or PRelu Pow Reciprocal Relu Round Selu
Sigmoid Sign Sin Softplus Sqrt Sub Sum Swish Tanh Where Xor"""
ELEMENTWISE = frozenset(_NAMES.split())
_END = 2**63 - 1


class SingleRow:
    """Rows at one end of an axis; what pairs of tokens lead to is computed for one row of pairs.

    A row of elementwise operators is that operator of its inputs' rows; other operators pass it on where their axes
    say which row of their input it is, and where nothing is known the value itself is sliced.
    """

    def __init__(self, g: Builder) -> None:
        self.g = g
        self._known: dict[tuple[ir.Value, int, bool], ir.Value] = {}

    def of(self, value: ir.Value, axis: int, *, last: bool) -> ir.Value:
        """``value``, of known sizes, with one row along ``axis``, the last or the first one."""
        shape = sizes(value)
        assert shape is not None
        if shape[axis] == 1:
            return value
        key = (value, axis, last)
        if key not in self._known:
            row = self._before(value, axis, last=last)
            row = self._sliced(value, axis, last=last) if row is None else row
            row.shape = ir.Shape([*shape[:axis], 1, *shape[axis + 1 :]])
            self._known[key] = row
        return self._known[key]

    def _sliced(self, value: ir.Value, axis: int, *, last: bool) -> ir.Value:
        start, end = (-1, _END) if last else (0, 1)
        return self.g.Slice(value, [start], [end], [axis])

    def _before(self, value: ir.Value, axis: int, *, last: bool) -> ir.Value | None:
        """The row from rows of the inputs of the node that computes ``value``; None where that is not known."""
        node, rank = value.producer(), len(sizes(value) or ())
        if node is None or node.domain or any(x is not None and sizes(x) is None for x in node.inputs):
            return None
        x = node.inputs[0] if node.inputs else None
        if node.op_type in ELEMENTWISE:
            rows = [x if x is None else self._aligned(x, axis - rank, last=last) for x in node.inputs]
            return self._again(node, rows)
        if x is None:
            return None
        if node.op_type == "Transpose":
            return self._again(node, [self.of(x, list(node.attributes.get_ints("perm") or ())[axis], last=last)])
        if node.op_type == "Unsqueeze":
            axes = self._axes(node, rank)
            remaining = [other for other in range(rank) if other not in axes]
            return self._again(node, [self.of(x, remaining.index(axis), last=last), *node.inputs[1:]]) if axes else None
        if node.op_type == "Squeeze" and len(node.inputs) > 1:
            full = len(sizes(x) or ())
            axes = self._axes(node, full)
            remaining = [other for other in range(full) if other not in axes]
            return self._again(node, [self.of(x, remaining[axis], last=last), *node.inputs[1:]]) if axes else None
        if node.op_type == "Gather" and node.inputs[1] is not None:
            at, of_rows = node.inputs[1], (node.attributes.get_int("axis", 0) or 0) % len(sizes(x) or (0,))
            if of_rows <= axis < of_rows + len(sizes(at) or ()):
                return self._again(node, [x, self.of(at, axis - of_rows, last=last)])
        return None

    def _aligned(self, x: ir.Value, from_end: int, *, last: bool) -> ir.Value:
        """The row of an operand, whose axes are aligned at the end."""
        rank = len(sizes(x) or ())
        return x if rank + from_end < 0 else self.of(x, rank + from_end, last=last)

    def _axes(self, node: ir.Node, rank: int) -> list[int]:
        """The constant axes that a node adds or removes; none where they are computed."""
        axes = node.inputs[1]
        if axes is None or axes.const_value is None:
            return []
        return [int(axis) % rank for axis in axes.const_value.numpy().reshape(-1)]

    def _again(self, node: ir.Node, inputs: list[ir.Value | None]) -> ir.Value:
        """The node's only output for other inputs."""
        return self.g.op(node.op_type, *inputs, **{name: attr.value for name, attr in node.attributes.items()})
