"""What mixes tokens between two regions that work token by token: attention, from projections' rows to context's rows.

It can go row by row of the batch where each node does the same to one row of real tokens as it does to a whole batch:
a copy of the nodes then reads, of everything with an axis of rows or of tokens, the part that is the row's.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import onnx_ir as ir

from posexport.graph.builder import Builder
from posexport.graph.ops.attention import AttentionSpec
from posexport.graph.ops.operator import DOMAIN
from posexport.graph.ops.spec import NodeSpec
from posexport.graph.passes.padding.mask import Axes
from posexport.graph.passes.padding.real_tokens import RealTokens
from posexport.graph.queries import constant, producer, sizes, width

#: that keep rows apart and tokens in order, whatever the numbers of both
_BY_ROW = {"Reshape", "Transpose", "Where", "Add", "Sub", "Mul", "Div", "Neg", "Concat", "Cast", "Identity", "Sigmoid"}
#: that do where these inputs name axes of fixed size
_ALONG = {"ReduceSum": 1, "Squeeze": 1, "Slice": 3}


@dataclass(frozen=True)
class Between:
    """``nodes``: in the graph's order, the last the Reshape to rows. ``lead``: the names of the axes B and T."""

    nodes: list[ir.Node]
    lead: Axes
    #: the padding mask of attention, which drops nothing in a row of real tokens
    padding: Collection[ir.Value]

    @property
    def rows(self) -> ir.Value:
        """The rows of the context, [B T, C]."""
        return self.nodes[-1].outputs[0]

    @property
    def _computed(self) -> set[ir.Value]:
        return {value for node in self.nodes for value in node.outputs}

    def refusal(self, matrices: Collection[ir.Value], *, by_row: bool = True) -> str | None:
        """Why its padding cannot be left out, ``by_row`` or around it; ``matrices``: values [B T, C] of the regions."""
        computed, inside = self._computed, set(self.nodes)
        for node in self.nodes:
            if node.domain != DOMAIN and not keeps_rows_apart(node):
                return f"{node.op_type} between attention and its projections is not known to keep rows apart"
            if node is not self.nodes[-1]:
                outside = any(user not in inside for value in node.outputs for user, _ in value.uses())
                if outside or any(value.is_graph_output() for value in node.outputs):
                    return "what attention computes is read elsewhere too"
                if by_row and any(sizes(value) is None for value in node.outputs):
                    return "a size between attention and its projections is not known"
            if not by_row:
                continue
            if node.op_type == "Reshape" and _row_shape(node.outputs[0], self.lead).count(-1) > 1:
                return "what attention reads is reshaped to two axes of tokens"
            read = [value for value in _read(node) if value not in computed and value not in matrices]
            if any(value.const_value is None and sizes(value) is None for value in read):
                return "a size of what attention reads is not known"
        return None

    def at_once(self, g: Builder, read: Mapping[ir.Value, ir.Value] = MappingProxyType({})) -> ir.Value:
        """The context of the whole batch, by a copy of the nodes; ``read``: values in place of inputs."""
        copies = dict(read)
        for node in self.nodes:
            copy(g, node, copies)
            for value in node.outputs:
                copies[value].shape = value.shape
        return copies[self.rows]

    def by_row(self, g: Builder, real: RealTokens) -> ir.Value:
        """The context of the real tokens [N, C], by a Loop over rows of the batch without padding."""
        dtype = self.rows.dtype
        assert dtype is not None
        contexts = g.loop(
            g.scalar(g.Shape(real.rows)),
            lambda turn, so_far: g.SequenceInsert(so_far, self._of_row(_Row(g, real, turn, self.lead))),
            g.SequenceEmpty(dtype=int(dtype)),
            ir.SequenceType(ir.TensorType(dtype)),
            body_name="each_row",
            name="contexts",
        )
        return g.ConcatFromSequence(contexts, axis=0)

    def _of_row(self, row: "_Row") -> ir.Value:
        """The context of one row's real tokens, [its tokens, C]."""
        copies: dict[ir.Value, ir.Value] = {}
        computed = self._computed
        for node in self.nodes:
            if node.op_type == "Reshape" and not node.domain:
                read, result = node.inputs[0], node.outputs[0]
                assert read is not None
                rows = copies[read] if read in computed else row.tokens(read)
                copies[result] = row.g.Reshape(rows, _row_shape(result, self.lead))
            else:
                copies |= {value: row.part(value) for value in _read(node) if value not in copies}
                copy(row.g, node, copies, _alone(node, self.padding))
            for value in node.outputs:
                copies[value].type = value.type
                if value.shape is not None:  # by which lowerings write no branch for larger batches
                    row_sizes = _row_shape(value, self.lead)
                    copies[value].shape = ir.Shape([None if size < 0 else size for size in row_sizes])
        return copies[self.rows]


class _Row:
    """One row of the batch, inside the Loop over rows with real tokens."""

    def __init__(self, g: Builder, real: RealTokens, turn: ir.Value, lead: Axes) -> None:
        self.g, self._real, self._lead = g, real, lead
        self._number = g.Gather(real.rows, g.Unsqueeze(turn, [0]))
        self._length = g.Gather(real.lengths, self._number)

    def tokens(self, matrix: ir.Value) -> ir.Value:
        """The rows of ``matrix`` [N, ...] that are tokens of this row of the batch."""
        end = self.g.Gather(self._real.ends, self._number)
        return self.g.slice(matrix, self.g.Sub(end, self._length), end, 0)

    def part(self, value: ir.Value) -> ir.Value:
        """The slice of ``value`` for this row and its real tokens, along axes of the batch and of tokens."""
        if value.const_value is not None:
            return value
        first = self.g.Gather(self._real.first, self._number)
        of_axis = {
            self._lead[0]: (self._number, self.g.Add(self._number, [1])),
            self._lead[1]: (first, self.g.Add(first, self._length)),
        }
        for place, size in enumerate(sizes(value) or ()):
            if size in of_axis:
                value = self.g.slice(value, *of_axis[size], place)
        return value


def keeps_rows_apart(node: ir.Node) -> bool:
    """Whether it does to each row, and to each token of it, what it does to it alone."""
    if node.domain:
        return False
    if node.op_type in _ALONG:
        place = _ALONG[node.op_type]
        axes = constant(node.inputs[place]) if place < len(node.inputs) else None
        along = sizes(node.inputs[0]) or ()
        return axes is not None and bool(along) and all(isinstance(along[int(axis)], int) for axis in axes)
    if node.op_type in ("MatMul", "Gemm"):
        x, weight = node.inputs[:2]
        columns = bool(node.attributes.get_int("transA", 0))
        return _is_constant(weight) and width(x) is not None and not columns
    return node.op_type in _BY_ROW


def _is_constant(weight: ir.Value | None) -> bool:
    """Whether it is an initializer, or a transposed one: a head that shares its weight with the embeddings."""
    transposed = producer(weight, "Transpose")
    weight = weight if transposed is None else transposed.inputs[0]
    return weight is not None and weight.const_value is not None


def _read(node: ir.Node) -> list[ir.Value]:
    """The inputs of a row's copy of ``node``; attention of a row computes its bias itself."""
    spec = AttentionSpec.of(node)
    bias = None if spec is None or spec.bias == "none" else spec.named_inputs(node)["bias"]
    return [value for value in node.inputs if value is not None and value is not bias]


def _row_shape(value: ir.Value, lead: Axes) -> list[int]:
    """The target shape of a Reshape for one row, if ``value`` is its output for a batch."""
    shape = [size if isinstance(size, int) else size.value for size in value.shape or ()]
    return [size if isinstance(size, int) else 1 if size == lead[0] else -1 for size in shape]


def _alone(node: ir.Node, padding: Collection[ir.Value]) -> AttentionSpec | None:
    """The record of attention of one row: it computes its bias, and has no mask of padding.

    Where an operator adds scores, the mask costs next to nothing and stays: one function serves rows and batches.
    """
    spec = AttentionSpec.of(node)
    if spec is None:
        return None
    only_padding = spec.mask == "keys" and not spec.operators and spec.named_inputs(node)["mask"] in padding
    return replace(spec, bias="none", mask="none" if only_padding else spec.mask)


def copy(g: Builder, node: ir.Node, copies: dict[ir.Value, ir.Value], spec: NodeSpec | None = None) -> None:
    """Write a copy of ``node`` with inputs replaced by ``copies``, which gets its outputs; as ``spec`` where given."""
    if spec is None:
        made = ir.Node(
            node.domain,
            node.op_type,
            [value and copies.get(value, value) for value in node.inputs],
            list(node.attributes.values()),
            num_outputs=len(node.outputs),
            version=node.version,
        )
    else:
        original = type(spec).of(node)
        assert original is not None
        inputs = original.named_inputs(node)
        made = spec.node({name: value and copies.get(value, value) for name, value in inputs.items()}, like=node)
    made.metadata_props.update(node.metadata_props)
    for old, new in zip(node.outputs, made.outputs, strict=True):
        new.name, new.type = old.name, old.type
    copies |= dict(zip(node.outputs, g.add(made), strict=True))
