"""On which axis an operator's output has the tokens that its input has; what reads along them is refused."""

from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from posexport.graph.passes.cache.colours import refuse
from posexport.graph.passes.cache.row_rules import REDUCTIONS, axes_of, constants
from posexport.graph.queries import sizes
from posexport.graph.single_row import ELEMENTWISE

_ALONG = {"Softmax": -1, "LogSoftmax": -1, "Hardmax": -1, "TopK": -1, "Split": 0, "Concat": 0}
_ALONG |= {"ArgMax": 0, "ArgMin": 0, "GatherElements": 0, "ScatterElements": 0, "CumSum": 0, "OneHot": -1}
_NORMS = ("LayerNormalization", "RMSNormalization")
_END = 2**30


@dataclass(frozen=True)
class Read:
    """A node and the tokens that it reads.

    Attributes:
        node: the node.
        tokens: its inputs that have tokens -> their axis, by the inputs' places.
    """

    node: ir.Node
    tokens: dict[int, int]

    @property
    def index(self) -> int:
        """The place of the first input with tokens."""
        return next(iter(self.tokens))

    @property
    def x(self) -> ir.Value:
        x = self.node.inputs[self.index]
        assert x is not None
        return x

    @property
    def axis(self) -> int:
        return self.tokens[self.index]

    @property
    def rank_in(self) -> int:
        return len(self.x.shape or ())

    @property
    def rank_out(self) -> int:
        return len(self.node.outputs[0].shape or ())

    def mixes(self) -> None:
        """Refuse a node that reads along its tokens."""
        refuse(self.node, f"{self.node.op_type} reads along its tokens")


Rule = Callable[[Read], int]
_RULES: dict[str, Rule] = {}


def axis_after(read: Read) -> int:
    """The axis of tokens of the node's outputs, except for a Reshape and what picks the last token."""
    op_type = read.node.op_type
    name = "elementwise" if op_type in ELEMENTWISE else "reduction" if op_type in REDUCTIONS else op_type
    name = "along" if op_type in _ALONG else name
    if name not in _RULES:
        read.mixes()
    return _RULES[name](read)


def _rule(*operators: str) -> Callable[[Rule], Rule]:
    def registered(function: Rule) -> Rule:
        _RULES.update(dict.fromkeys(operators, function))
        return function

    return registered


@_rule("elementwise")
def _elementwise(read: Read) -> int:
    ends = {len((read.node.inputs[index] or read.x).shape or ()) - axis for index, axis in read.tokens.items()}
    if len(ends) != 1:
        refuse(read.node, "its tokens are on different axes")
    return read.rank_out - ends.pop()


@_rule("MatMul")
def _matmul(read: Read) -> int:
    if len(read.tokens) == 2:
        refuse(read.node, "a product of tokens with tokens, which is no attention that posexport recognises")
    if read.axis == read.rank_in - (1 if read.index == 0 else 2):
        read.mixes()
    return read.rank_out - (read.rank_in - read.axis)


@_rule("Gemm")
def _gemm(read: Read) -> int:
    if list(read.tokens.items()) != [(0, 0)] or read.node.attributes.get_int("transA", 0) == 1:
        read.mixes()
    return 0


@_rule("Transpose")
def _transpose(read: Read) -> int:
    return list(read.node.attributes.get_ints("perm") or ()).index(read.axis)


@_rule("Unsqueeze")
def _unsqueeze(read: Read) -> int:
    axes = axes_of(read.node, 1, read.rank_out)
    if axes is None:
        read.mixes()
    return [axis for axis in range(read.rank_out) if axis not in (axes or ())][read.axis]


@_rule("Squeeze")
def _squeeze(read: Read) -> int:
    axes = axes_of(read.node, 1, read.rank_in)
    if axes is None or read.axis in axes:
        read.mixes()
    return read.axis - sum(axis < read.axis for axis in axes or ())


@_rule("along")
def _along(read: Read) -> int:
    """Of operators that read along one axis."""
    node, default = read.node, _ALONG[read.node.op_type]
    axis = node.attributes.get_int("axis", default)
    if node.op_type == "CumSum":
        axis = (constants(node.inputs[1]) or [read.axis])[0]
    assert axis is not None
    if node.op_type == "OneHot":
        return read.axis + (axis % read.rank_out <= read.axis)
    if axis % read.rank_in == read.axis:
        read.mixes()
    drops = node.op_type in ("ArgMax", "ArgMin") and node.attributes.get_int("keepdims", 1) == 0
    return read.axis - (drops and axis % read.rank_in < read.axis)


@_rule("reduction")
def _reduction(read: Read) -> int:
    axes = axes_of(read.node, 1, read.rank_in)
    if axes is None or read.axis in axes:
        read.mixes()
    keeps = read.node.attributes.get_int("keepdims", 1)
    return read.axis if keeps else read.axis - sum(axis < read.axis for axis in axes or ())


@_rule(*_NORMS)
def _norm(read: Read) -> int:
    if (read.node.attributes.get_int("axis", -1) or 0) % read.rank_in <= read.axis:
        read.mixes()
    return read.axis


@_rule("Gather")
def _gather(read: Read) -> int:
    """An embedding of tokens, or a part of each."""
    data, at = read.node.inputs
    axis = (read.node.attributes.get_int("axis", 0) or 0) % len((data or read.x).shape or (0,))
    if len(read.tokens) == 2 or (read.index == 0 and axis == read.axis):
        read.mixes()
    if read.index == 1:
        return axis + read.axis
    return read.axis if axis > read.axis else read.axis + len((at or read.x).shape or ()) - 1


@_rule("GatherND")
def _gather_nd(read: Read) -> int:
    """Rows of a table that tokens are ids of, ``table[ids]``; or a part of each token."""
    if list(read.tokens) == [1] and read.axis < read.rank_in - 1 and not read.node.attributes.get_int("batch_dims", 0):
        return read.axis
    at = read.node.inputs[1]
    known = None if at is None or at.const_value is None else at.const_value.shape.numpy()
    if known is None or list(read.tokens) != [0] or read.node.attributes.get_int("batch_dims", 0) != 0:
        read.mixes()
    assert known is not None
    if read.axis < known[-1]:
        read.mixes()
    return read.axis - known[-1] + len(known) - 1


@_rule("ScatterND")
def _scatter_nd(read: Read) -> int:
    """Into rows of the first axis, which is not that of the tokens: ``x[..., :n] = y`` between two Transposes."""
    at = (read.node.inputs[1] or read.x).shape
    if 1 in read.tokens or at is None or len(at) != 2 or at[1] != 1 or 0 in read.tokens.values():
        read.mixes()
    return _elementwise(read)


@_rule("Slice")
def _slice(read: Read) -> int:
    """Of other axes, or of all tokens."""
    axes = axes_of(read.node, 3, read.rank_in) or list(range(read.rank_in))
    if read.axis in axes:
        place = axes.index(read.axis)
        starts, ends = (constants(value) for value in read.node.inputs[1:3])
        if starts is None or ends is None or starts[place] != 0 or ends[place] < _END:
            read.mixes()
    return read.axis


@_rule("Expand")
def _expand(read: Read) -> int:
    return read.axis + read.rank_out - read.rank_in


@_rule("Tile")
def _tile(read: Read) -> int:
    counts = constants(read.node.inputs[1])
    if counts is None or counts[read.axis] != 1:
        read.mixes()
    return read.axis


@_rule("Pad")
def _pad(read: Read) -> int:
    pads, by_axes = constants(read.node.inputs[1]), len(read.node.inputs) > 3 and read.node.inputs[3] is not None
    if pads is None or by_axes or pads[read.axis] or pads[read.axis + read.rank_in]:
        read.mixes()
    return read.axis


def is_last(read: Read) -> bool:
    """Whether a node picks the last token alone, ``x[:, -1]`` or ``x[:, [-1]]``."""
    node, shape = read.node, sizes(read.node.outputs[0]) or ()
    if list(read.tokens) != [0]:
        return False
    if node.op_type == "Gather":
        axis = (node.attributes.get_int("axis", 0) or 0) % read.rank_in
        return axis == read.axis and constants(node.inputs[1]) == [-1]
    if node.op_type == "GatherND":
        return read.axis == 0 and constants(node.inputs[1]) == [-1]
    axes = axes_of(node, 3, read.rank_in) if node.op_type == "Slice" else None
    return axes == [read.axis] and constants(node.inputs[1]) == [-1] and shape[read.axis : read.axis + 1] == (1,)
