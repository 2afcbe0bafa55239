"""Follows tokens node by node: on which axis they are, and which rows of positions a node reads."""

import numpy as np
import onnx_ir as ir

from posexport.base.spec import BATCH, SEQUENCE, TOTAL
from posexport.graph.builder import Builder
from posexport.graph.passes.cache.colours import Colours, refuse
from posexport.graph.passes.cache.known import Known
from posexport.graph.passes.cache.row_rules import REDUCTIONS
from posexport.graph.passes.cache.rows import Role, Rows
from posexport.graph.passes.cache.token_rules import Read, axis_after, is_last
from posexport.graph.passes.cache.whole import Whole
from posexport.graph.queries import sizes
from posexport.graph.single_row import ELEMENTWISE

#: operators that read of each token its elements of another input, which may be the same for all tokens
_BY_TOKEN = (*ELEMENTWISE, "Concat", "GatherElements", "ScatterElements", "ScatterND")
#: inputs that are sizes, axes or indices of axes
_SIZES = {"Reshape": {1}, "Expand": {1}, "Slice": {1, 2, 3, 4}, "Split": {1}, "Unsqueeze": {1}, "Squeeze": {1}}
_SIZES |= {"Tile": {1}, "Pad": {1, 3}, "TopK": {1}, "CumSum": {1}, "OneHot": {1}, **{name: {1} for name in REDUCTIONS}}


class Content:
    """Follows tokens through the graph.

    Attributes:
        axis: values that have tokens -> the axis of tokens.
        flat: values with the tokens of all rows of the batch on axis 0.
        of_last: whether forward returns logits of the last token; the graph returns logits of every new token.
    """

    def __init__(self, g: Builder, colours: Colours, known: Known, rows: Rows, whole: Whole) -> None:
        self.g, self.colours, self.known, self.rows, self.whole = g, colours, known, rows, whole
        self.axis: dict[ir.Value, int] = {colours.ids: 1}
        self.flat: set[ir.Value] = set()
        self.of_last = False

    def follow(self, node: ir.Node) -> None:
        """A node that reads tokens: its outputs' axis of tokens, and rows for what it reads of positions."""
        if node.domain:
            refuse(node, f"{node.domain}::{node.op_type} reads tokens")
        reads = {
            index: x
            for index, x in enumerate(node.inputs)
            if x is not None and index not in _SIZES.get(node.op_type, ())
        }
        if any(x in self.colours.of_mask for x in node.inputs if x not in reads.values()):
            refuse(node, "a size follows from the mask's numbers")
        tokens = {index: self.axis[x] for index, x in reads.items() if x in self.colours.content}
        flat = {node.inputs[index] in self.flat for index in tokens}
        if len(flat) > 1:
            refuse(node, "tokens of a row and tokens of all rows meet")
        read = Read(node, tokens)
        if is_last(read) or self._is_last_by_sizes(read):
            return self._last(read)
        axis = self._reshaped(read) if node.op_type == "Reshape" else self._after(read)
        for output in node.outputs:
            self.axis[output] = axis
            if node.op_type != "Reshape" and True in flat:
                self.flat.add(output)
            elif output not in self.flat:
                name_tokens(output, axis)
        for index, x in reads.items():
            if x in self.colours.sized:
                self._read_rows(read, index, x, axis, is_flat=True in flat)
        return None

    def _after(self, read: Read) -> int:
        """The axis of tokens of the outputs; a Slice up to a computed size may be one of all tokens."""
        node = read.node
        if node.op_type == "Slice" and self.known.has(node.inputs[2]) and _axes_of_one(node) == read.axis:
            starts, bound = node.inputs[1:3]
            assert bound is not None
            ends = zip(self.known.arrays(bound), self.known.all_lengths(bound), strict=True)
            is_all = all(int(end.reshape(-1)[0]) >= length for end, length in ends)
            from_first = starts is not None and starts.const_value is not None and not starts.const_value.numpy().any()
            if is_all and from_first and not self.known.may_differ(bound):
                return read.axis
        return axis_after(read)

    def _read_rows(self, read: Read, index: int, x: ir.Value, axis: int, *, is_flat: bool) -> None:
        """Replace an input of positions by its rows for the new tokens."""
        node, axes = read.node, self.known.token_axes(x)
        one = self.known.constant_along(x, axes) if axes else None
        if one is None:
            self.known.check(node, x, axes)
        if not axes:
            node.replace_input_with(index, self.whole.of(x))
            return
        if node.op_type not in _BY_TOKEN:
            refuse(node, f"{node.op_type} reads positions")
        if len(axes) > 1:
            refuse(node, f"{node.op_type} reads pairs of tokens, which is no attention that posexport recognises")
        if self.known.rank(x) - axes[0] != read.rank_out - axis:
            refuse(node, "positions are on another axis than its tokens")
        if one is not None and node.op_type in ELEMENTWISE:
            node.replace_input_with(index, self.constant(one))
        elif one is None or x in self.colours.of_mask:
            if is_flat:
                refuse(node, "positions meet tokens of all rows")
            node.replace_input_with(index, self.placed(node, x, axes[0], node.outputs[0]))
        # else equal rows, of which the sizes of the ids make as many as tokens are new

    def constant(self, array: "np.ndarray[tuple[int, ...], np.dtype[np.generic]]") -> ir.Value:
        return self.g.op("Identity", array)

    def placed(self, node: ir.Node, x: ir.Value, axis: int, like: ir.Value, role: Role = "queries") -> ir.Value:
        """Rows of ``x`` for the new tokens of each row, or for all, with the batch where ``like`` has it."""
        shape, rank_of_x = sizes(like) or (), self.known.rank(x)
        if BATCH not in shape:
            refuse(node, "the batch is no axis alone")
        batch, rank, g = shape.index(BATCH), len(shape), self.g
        rows = self.rows.with_rank(self.rows.pick(x, {axis: role}), rank_of_x, rank)
        rows = g.Squeeze(rows, [batch + 1])
        if batch:
            rows = g.Transpose(rows, perm=[*range(1, batch + 1), 0, *range(batch + 1, rank)])
        shape_of_rows: list[int | str] = [1] * rank
        for place in range(rank_of_x):
            shape_of_rows[place + rank - rank_of_x] = self.known.arrays(x)[0].shape[place]
        shape_of_rows[batch], shape_of_rows[axis + rank - rank_of_x] = BATCH, SEQUENCE if role == "queries" else TOTAL
        rows.shape = ir.Shape(shape_of_rows)
        return rows

    def _reshaped(self, read: Read) -> int:
        """The axis of tokens after a Reshape, by the sizes before it."""
        x, output = read.x, read.node.outputs[0]
        before, after = sizes(x) or (), sizes(output) or ()
        if x in self.flat:
            if after[:1] == (BATCH,) and len(after) > 1 and isinstance(after[1], str):
                return 1
            if after and isinstance(after[0], str):
                self.flat.add(output)
                return 0
            refuse(read.node, "tokens of all rows are shaped otherwise than [batch, tokens, ...]")
        names = {before[read.axis], *(size for size in after if isinstance(size, str) and SEQUENCE in size)}
        for axis, size in enumerate(after):
            same_lead = _product(after[:axis]) == _product(before[: read.axis])
            if size in names and same_lead and _product(after[axis + 1 :]) == _product(before[read.axis + 1 :]):
                return axis
        if read.axis == 1 and before[0] == BATCH and after and isinstance(after[0], str):
            self.flat.add(output)
            return 0
        return refuse(read.node, f"tokens [{', '.join(map(str, before))}] become [{', '.join(map(str, after))}]")

    def _is_last_by_sizes(self, read: Read) -> bool:
        """Whether a Slice begins at the last token by the number of tokens, ``x[:, T - 1:]``."""
        node = read.node
        start = node.inputs[1] if node.op_type == "Slice" else None
        if start is None or not self.known.has(start) or _axes_of_one(node) != read.axis:
            return False
        pairs = zip(self.known.arrays(start), self.known.all_lengths(start), strict=True)
        is_last = all(int(array.reshape(-1)[0]) == length - 1 for array, length in pairs)
        return is_last and not self.known.may_differ(start)

    def _last(self, read: Read) -> None:
        """All tokens in place of the last one; without its axis, as tokens of all rows."""
        self.of_last = True
        x, output = read.x, read.node.outputs[0]
        if read.axis != 1 and len(sizes(output) or ()) != read.rank_in:
            refuse(read.node, "the last token is not that of [batch, tokens, channels]")
        every = x
        if len(sizes(output) or ()) != read.rank_in:
            rest = [int(size) for size in (sizes(x) or ())[2:]]
            every = self.g.op("Reshape", x, [-1, *rest], shape=[f"{BATCH}*{SEQUENCE}", *rest])
            self.colours.content.add(every)
            self.flat.add(every)
            self.axis[every] = 0
        ir.convenience.replace_all_uses_with(output, every, replace_graph_outputs=True)


def name_tokens(value: ir.Value, axis: int) -> None:
    """Name the axis of tokens as in the ids, whatever the trace calls it (Min(300, T) of a causal buffer)."""
    shape = list(sizes(value) or ())
    if len(shape) > axis and shape[axis] != SEQUENCE:
        shape[axis] = SEQUENCE
        value.shape = ir.Shape(shape)


def _axes_of_one(node: ir.Node) -> int | None:
    """The axis of a Slice along one axis."""
    named = node.inputs[3] if len(node.inputs) > 3 else None
    if named is None or named.const_value is None or named.const_value.size != 1:
        return None
    axis = int(named.const_value.numpy().reshape(()))
    return axis % len(node.outputs[0].shape or (0,))


def _product(shape: tuple[int | str, ...]) -> tuple[int, list[str]]:
    """The product of sizes: its number and its names."""
    number, names = 1, []
    for size in shape:
        for factor in str(size).split("*"):
            if factor.isdigit():
                number *= int(factor)
            else:
                names.append(factor)
    return number, sorted(names)
