"""Splits fused QKV projections into one MatMul each for Q, K and V: the inverse of `PackedProjections`.

Modules compute ``qkv(x)`` and split it by split, chunk, unbind, indexing or a permutation of five axes. In each case a
head's channels are columns of the weight, which are traced through the nodes in between.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from posexport.base.targets.target import Target
from posexport.graph import edits
from posexport.graph.builder import Builder
from posexport.graph.edits import initializer
from posexport.graph.ops.attention import AttentionSpec
from posexport.graph.passes.graph_pass import Context, GraphPass, PassResult
from posexport.graph.passes.packed_projections import Projection, projection
from posexport.graph.queries import FOLDED_FROM, axis, constant, names_of, sizes

#: labels of axes: batch and tokens by index, and channels
_LEAD, _CHANNELS = (0, 1), -1
_SPLIT_HEADS = (0, _CHANNELS, 1, _CHANNELS)


@dataclass(frozen=True)
class _Columns:
    """The columns of a projection's weight that the elements of a value come from.

    Attributes:
        columns: column indices, an array with the value's axes except batch and tokens.
        axes: label of every axis of the value.
        lead: the sizes of batch and tokens.
    """

    columns: NDArray[np.int64]
    axes: tuple[int, ...]
    lead: tuple[int | str, ...]

    def channel_axis(self, at: int) -> int | None:
        """The axis of ``columns`` for the value's axis ``at``; None for batch and tokens."""
        at %= len(self.axes)
        return self.axes[:at].count(_CHANNELS) if self.axes[at] == _CHANNELS else None


@dataclass(frozen=True)
class _Read:
    """Q, K or V of attention, [B, H, T, D]: ``columns`` of a projection, selected by ``nodes``."""

    value: ir.Value
    columns: NDArray[np.int64]
    nodes: tuple[ir.Node, ...]


class SeparateProjections(GraphPass):
    """Replace a fused QKV projection by separate projections.

    Before: ``Split(Reshape(MatMul(x, w_qkv))) -> Transpose -> posexport::Attention``
    After:  ``Transpose(Reshape(MatMul(x, w_q))), .. -> posexport::Attention``
    """

    name = "separate-projections"
    description = "queries, keys and values of one linear projection as a MatMul for each"

    def why_not_preferred(self, target: Target) -> str | None:
        """`PackedProjections` fuses them again where that is faster, in the order of packed heads."""
        if target.provider is None:
            return "a portable graph keeps the weights as the source has them, each by its name"
        return super().why_not_preferred(target)

    def apply(self, model: ir.Model, context: Context) -> PassResult:
        """Apply the pass; the result counts projections."""
        by_node = _by_projection(model.graph)
        packed = [group for group in by_node.values() if not _apart(*group)]
        refused = [_refusal(*group) for group in packed]
        for (source, reads), reason in zip(packed, refused, strict=True):
            if reason is None:
                for number, read in enumerate(reads):
                    _put_projection(source, read, number)
        return PassResult.of(refused)


def _by_projection(graph: ir.Graph) -> dict[ir.Node, tuple[Projection, list[_Read]]]:
    """Every projection that attention reads, and the reads, by its MatMul."""
    by_product: dict[ir.Node, tuple[Projection, list[_Read]]] = {}
    for node in graph:
        if AttentionSpec.of(node) is not None:
            for value in dict.fromkeys(node.inputs[:3]):
                source, read = _read(value)
                if source is not None and read is not None:
                    by_product.setdefault(source.product, (source, []))[1].append(read)
    return by_product


def _read(value: ir.Value | None) -> tuple[Projection | None, _Read | None]:
    """The projection that ``value`` comes from, and the columns that it has; None if it is not traceable."""
    nodes: list[ir.Node] = []
    at = value
    while at is not None and (node := at.producer()) is not None:
        source = projection(node if node.op_type == "MatMul" else _product(node))
        if source is not None and source.output is at:
            read = None if value is None else _followed(source, value, tuple(reversed(nodes)))
            return source, read
        if node.domain or node.op_type not in _STEPS:
            break
        nodes.append(node)
        at = node.inputs[0]
    return None, None


def _product(add: ir.Node) -> ir.Node | None:
    """The MatMul that an Add reads; None for other nodes."""
    operands = [operand for operand in add.inputs if add.op_type == "Add" and operand is not None]
    return next((node for x in operands if (node := x.producer()) is not None and node.op_type == "MatMul"), None)


def _followed(source: Projection, value: ir.Value, nodes: tuple[ir.Node, ...]) -> _Read | None:
    """Trace the columns of ``source`` through ``nodes`` to ``value``."""
    shape = sizes(source.output) or ()
    at: _Columns | None = _Columns(np.arange(source.channels), (*_LEAD, _CHANNELS), shape[:2])
    if len(shape) != 3:
        return None
    for node, out in zip(nodes, [*(node.inputs[0] for node in nodes[1:]), value], strict=True):
        if at is None or out is None:
            return None
        at = _STEPS[node.op_type](out, at)
    if at is None:
        return None
    return _Read(value, at.columns, nodes) if at.axes == _SPLIT_HEADS else None


def _producer(value: ir.Value) -> ir.Node:
    node = value.producer()
    assert node is not None
    return node


def _reshaped(out: ir.Value, at: _Columns) -> _Columns | None:
    shape = sizes(out) or ()
    channels = [size for size in shape[2:] if isinstance(size, int)]
    if at.axes[:2] != _LEAD or shape[:2] != at.lead or len(channels) != len(shape) - 2:
        return None
    if np.prod(channels) != at.columns.size:
        return None
    return replace(at, columns=at.columns.reshape(channels), axes=(*_LEAD, *[_CHANNELS] * len(channels)))


def _transposed(out: ir.Value, at: _Columns) -> _Columns | None:
    node = _producer(out)
    order = list(node.attributes.get_ints("perm") or range(len(at.axes))[::-1])
    channels = [at.channel_axis(axis_before) for axis_before in order]
    columns = at.columns.transpose([channel for channel in channels if channel is not None])
    return replace(at, columns=columns, axes=tuple(at.axes[axis_before] for axis_before in order))


def _part_of_split(out: ir.Value, at: _Columns) -> _Columns | None:
    node = _producer(out)
    along = node.attributes.get_int("axis", 0) or 0
    channel = at.channel_axis(along)
    widths = [(sizes(output) or (None,) * len(at.axes))[along] for output in node.outputs]
    if channel is None or not all(isinstance(width, int) for width in widths):
        return None
    ends = np.cumsum([int(width or 0) for width in widths])
    number = next(number for number, output in enumerate(node.outputs) if output is out)
    return replace(at, columns=np.split(at.columns, ends[:-1], channel)[number])


def _sliced(out: ir.Value, at: _Columns) -> _Columns | None:
    node = _producer(out)
    starts, ends, axes, steps = (constant(operand) for operand in (*node.inputs[1:], None)[:4])
    if starts is None or ends is None or axes is None:
        return None
    columns = at.columns
    for number, along in enumerate(axes):
        channel = at.channel_axis(int(along))
        step = 1 if len(node.inputs) < 5 else None if steps is None else int(steps[number])
        if channel is None or step is None or step < 1:
            return None
        selected = slice(int(starts[number]), int(ends[number]), step)
        columns = columns[(slice(None),) * channel + (selected,)]
    return replace(at, columns=columns)


def _gathered(out: ir.Value, at: _Columns) -> _Columns | None:
    node = _producer(out)
    along = (axis(node, 0) or 0) % len(at.axes)
    index, channel = constant(node.inputs[1]), at.channel_axis(along)
    if index is None or index.ndim > 1 or channel is None:
        return None
    axes = at.axes if index.ndim else (*at.axes[:along], *at.axes[along + 1 :])
    return replace(at, columns=np.take(at.columns, index, channel), axes=axes)


def _squeezed(out: ir.Value, at: _Columns) -> _Columns | None:
    node = _producer(out)
    squeezed = constant(node.inputs[1]) if len(node.inputs) > 1 else None
    if squeezed is None:
        return None
    removed_axes = [int(index) % len(at.axes) for index in squeezed]
    channels = [at.channel_axis(removed) for removed in removed_axes]
    if None in channels:
        return None
    columns = np.squeeze(at.columns, tuple(channel for channel in channels if channel is not None))
    axes = tuple(label for index, label in enumerate(at.axes) if index not in removed_axes)
    return replace(at, columns=columns, axes=axes)


#: operators that only move channels: (output, columns of the input) -> columns of the output
_STEPS: dict[str, Callable[[ir.Value, _Columns], _Columns | None]] = {
    "Reshape": _reshaped,
    "Transpose": _transposed,
    "Split": _part_of_split,
    "Slice": _sliced,
    "Gather": _gathered,
    "Squeeze": _squeezed,
}


def _apart(source: Projection, reads: Sequence[_Read]) -> bool:
    """Whether the projection is already separate: only Q, K or V, with its heads in order."""
    return all(np.array_equal(read.columns.ravel(), np.arange(source.channels)) for read in reads) and all(
        [node.op_type for node in read.nodes] == ["Reshape", "Transpose"] for read in reads
    )


def _refusal(source: Projection, reads: Sequence[_Read]) -> str | None:
    if len(list(source.weight.uses())) > 1:
        return "a weight is read elsewhere too and would be stored twice"
    nodes = {node for read in reads for node in read.nodes}
    inner = [source.output, *(value for node in nodes for value in node.outputs)]
    ends = {read.value for read in reads}
    if any(user not in nodes for value in inner if value not in ends for user, _ in value.uses()):
        return "what a projection gives is read elsewhere too, not by attention alone"
    return None


def _put_projection(source: Projection, read: _Read, number: int) -> None:
    """Replace ``read`` by a projection with its columns, split into heads."""
    graph, x = source.product.graph, source.product.inputs[0]
    assert graph is not None
    g = Builder.at(read.nodes[0], name=f"{source.output.name}_part_{number}")
    at = g.MatMul(x, _columns(graph, source.weight, read.columns, number))
    if source.bias is not None:
        at = g.Add(at, _columns(graph, source.bias, read.columns, number))
    edits.replace(read.value, g.Transpose(g.Reshape(at, [0, 0, *read.columns.shape]), perm=[0, 2, 1, 3]))


def _columns(graph: ir.Graph, weight: ir.Value, columns: NDArray[np.int64], number: int) -> ir.Value:
    """An initializer with ``columns`` of a weight or bias, which is computed when it is read, to save memory."""
    tensor, flat = weight.const_value, columns.ravel()
    assert tensor is not None

    def selected(tensor: ir.TensorProtocol = tensor) -> ir.TensorProtocol:
        return ir.tensor(np.ascontiguousarray(np.asarray(tensor.numpy())[..., flat]))

    shape = ir.Shape([*map(int, tensor.shape.numpy()[:-1]), flat.size])
    initial = initializer(graph, f"{weight.name}_{number}", ir.LazyTensor(selected, tensor.dtype, shape))
    initial.metadata_props[FOLDED_FROM] = repr(list(names_of(weight)))
    return initial
