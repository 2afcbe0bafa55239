"""Unpadding for decoders: linear layers of a prefill run on real tokens only.

Attention is unchanged, with its KV cache and over all tokens. Rows are re-padded before it, with zeros for padding, and
its context is gathered after it. Each is one node per layer and no branch: most calls are decode steps, in which an If
costs more than it could save; attention to a static cache has one already (`posexport.graph.passes.padding.steps`). The
real tokens are computed once per call; without padding, as in a decode step, all tokens are kept. Keys and values of
padding are zeros in the cache, where the mask drops them as before.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

import onnx_ir as ir

from posexport.base.refusal import Refusal
from posexport.base.targets.dtypes import MODEL_DTYPE
from posexport.base.targets.target import Target
from posexport.graph.builder import Builder
from posexport.graph.edits import replace
from posexport.graph.ops.attention import AttentionSpec
from posexport.graph.ops.operator import DOMAIN
from posexport.graph.ops.rotation import RotationSpec
from posexport.graph.passes.flat_tokens import flatten
from posexport.graph.passes.padding import new_tokens, steps
from posexport.graph.passes.padding.between import keeps_rows_apart
from posexport.graph.passes.padding.mask import Axes, mask_of_new_tokens
from posexport.graph.passes.padding.new_tokens import NewTokens
from posexport.graph.passes.padding.rows import builder, enters, is_rows
from posexport.graph.queries import axis, constant, producer, sizes, width

_FLOAT = ir.DataType[MODEL_DTYPE.onnx]
#: further token-wise operators (see `keeps_rows_apart`): Slice of used slots of a static cache, or of last tokens, and
#: activations of a head, which are finite for the zeros at padding
_BY_TOKEN = {"Unsqueeze", "Squeeze", "Split", "Expand", "Slice", "Tanh", "Gelu", "Relu", "Swish"}
_OWN = {AttentionSpec.op_type, RotationSpec.op_type}
#: the axis of tokens in keys and values [B, H, T, D]
_TOKENS = -2


def drop(model: ir.Model, target: Target) -> int | Refusal:
    """Rewrite a decoder's graph.

    Returns:
        The number of attention nodes with re-padded inputs, or the reason why there are none.
    """
    # all attention must be over the same new tokens, with no operator that depends on keys of padding
    attention = [node for node in model.graph if AttentionSpec.of(node) is not None]
    specs = [spec for spec in map(AttentionSpec.of, attention) if spec is not None]
    if any(operator.counts for spec in specs for operator in spec.operators.values()):
        return Refusal("what attention adds to scores depends on keys of padding too")
    leads = {_lead(node) for node in attention}
    lead = leads.pop() if len(leads) == 1 else None
    if lead is None:
        return Refusal("attention is not all over the same new tokens")
    tokens = next((value for value in model.graph.inputs if (sizes(value) or ())[:2] == lead), None)
    if tokens is None:
        return Refusal("no input is of the new tokens")
    # rows of tokens, and the mask of the keys
    flatten(model.graph, lead)
    flow = _Flow.of(model.graph, lead)
    if flow.reason is not None:
        return Refusal(flow.reason)
    self_attention = [node for node in attention if any(value in flow.computed for value in node.inputs[1:3])]
    mask = mask_of_new_tokens(model, self_attention, lead)
    if isinstance(mask, Refusal):
        return mask
    _drop(model, mask, tokens, flow, branches=not target.waits_to_branch)
    return len(self_attention)


@dataclass
class _Flow:
    """The data flow of rows of new tokens through a graph.

    Attributes:
        entering: Reshapes to rows.
        leaving: Reshapes from rows to inputs of attention or outputs of the graph.
        computed: values that depend on rows and are not rows.
        reason: why the pass does not apply, or None.
    """

    matrices: set[ir.Value] = field(default_factory=set)
    entering: list[ir.Node] = field(default_factory=list)
    leaving: list[ir.Node] = field(default_factory=list)
    computed: set[ir.Value] = field(default_factory=set)
    reason: str | None = None

    @classmethod
    def of(cls, graph: ir.Graph, lead: Axes) -> "_Flow":
        flow = cls()
        for node in graph:
            if enters(node, lead):
                flow.entering.append(node)
                flow.matrices.add(node.outputs[0])
            elif any(value in flow.matrices for value in node.inputs):
                if node.op_type == "Reshape":
                    shape = constant(node.inputs[1])
                    if shape is not None and 0 in shape and not node.attributes.get_int("allowzero", 0):
                        flow.reason = "a Reshape takes over the number of rows of tokens"
                    flow.leaving.append(node)
                    flow.computed |= set(node.outputs)
                elif is_rows(node.outputs[0]):
                    flow.matrices |= set(node.outputs)
                else:
                    flow.reason = f"{node.op_type} reads rows of tokens as another matrix"
            elif any(value in flow.computed for value in node.inputs) and node.op_type not in ("Shape", "Size"):
                flow.computed |= set(node.outputs)
                if not _keeps_tokens_apart(node, flow.computed):
                    flow.reason = f"{node.op_type} may read what is computed for padding"
        return flow


def _lead(node: ir.Node) -> Axes | None:
    """The names of the axes B and T of the queries."""
    shape = sizes(node.inputs[0])
    return None if shape is None or len(shape) < 3 else (shape[0], shape[_TOKENS])


def _keeps_tokens_apart(node: ir.Node, computed: Collection[ir.Value]) -> bool:
    """Whether zeros at padding change nothing for other tokens: attention drops them by its mask."""
    if node.domain:
        return node.domain == DOMAIN and node.op_type in _OWN
    if node.op_type in ("LayerNormalization", "RMSNormalization"):
        return axis(node, -1) == -1
    if node.op_type in ("Concat", "TensorScatter"):
        # concatenation of past and new tokens
        appends = node.inputs[0] not in computed and node.inputs[1] in computed and axis(node, 0) == _TOKENS
        return appends or (node.op_type == "Concat" and axis(node, 0) == -1 and width(node.outputs[0]) is not None)
    if node.op_type == "Div":
        # zeros divided by zeros would be NaN
        return node.inputs[1] is not None and node.inputs[1].const_value is not None
    return node.op_type in _BY_TOKEN or keeps_rows_apart(node)


def _drop(model: ir.Model, mask: ir.Value, tokens: ir.Value, flow: _Flow, *, branches: bool) -> None:
    graph = model.graph
    g = builder(model)
    new = new_tokens.find(g, mask, tokens)
    padding = _Padding.of(g, new, (sizes(tokens) or ())[:2])
    once = g.take()
    graph.insert_before(graph[0], once)
    for node in flow.entering:
        padding.leave_out(node)
    # after that: rows may leave as they entered
    put_back = _put_back_at(flow.leaving)
    # once per call, before all readers
    zeros = {channels: padding.zeros(channels) for channels in dict.fromkeys(map(_channels, put_back))}
    graph.insert_after(once[-1], g.take())
    repadded = []
    for rows, readers in put_back.items():
        every = padding.put_back(rows, zeros[_channels(rows)])
        repadded.append(every)
        graph.insert_after(rows.producer() or graph[0], g.take())
        for reader, place in readers:
            reader.replace_input_with(place, every)
            _give_axes(reader)
    for node in flow.leaving:
        if node.outputs[0].is_graph_output():
            _give(graph, g, node, new.unpads, padding)
    if branches:
        steps.branch(graph, g, new.kept, repadded)


@dataclass(frozen=True)
class _Padding:
    """Takes the computed tokens out of [B, T, ...] and puts their rows back.

    Attributes:
        lead: the names of the axes B and T.
        shape: B and T, int64 [2].
        places: rows and new tokens of the computed tokens, int64 [N, 2].
    """

    g: Builder
    lead: tuple[int | str, ...]
    shape: ir.Value
    places: ir.Value

    @classmethod
    def of(cls, g: Builder, new: NewTokens, lead: tuple[int | str, ...]) -> "_Padding":
        places = g.Transpose(g.NonZero(new.kept), perm=[1, 0], name="places_of_kept_tokens")
        return cls(g, lead, g.Shape(new.kept), places)

    def zeros(self, channels: int) -> ir.Value:
        """[B, T, ``channels``]."""
        return self.g.ConstantOfShape(self.g.shape(self.shape, [channels]), name=f"zeros_of_{channels}_channels")

    def leave_out(self, reshape: ir.Node) -> None:
        """Let a Reshape [B, T, ..] to [B T, C] have only the computed tokens."""
        graph, tokens, rows = reshape.graph, reshape.inputs[0], reshape.outputs[0]
        assert graph is not None
        assert tokens is not None
        kept = self.g.GatherND(tokens, self.places, name=f"{tokens.name}_kept")
        graph.insert_before(reshape, self.g.take())
        if len(sizes(tokens) or ()) > 3:  # of heads
            reshape.replace_input_with(0, kept)
            return
        kept.shape, kept.type = rows.shape, rows.type
        ir.convenience.replace_all_uses_with(rows, kept)
        graph.remove(reshape, safe=True)

    def put_back(self, rows: ir.Value, zeros: ir.Value) -> ir.Value:
        """``rows`` [N, C] with ``zeros`` at padding, [B, T, C]."""
        every = self.g.ScatterND(zeros, self.places, rows, name=f"{rows.name}_put_back")
        every.shape, every.type = ir.Shape([*self.lead, _channels(rows)]), rows.type
        return every


def _give_axes(reader: ir.Node) -> None:
    """Let a Split or Reshape of rows read [B, T, C]; a Reshape to this shape goes."""
    if reader.op_type == "Split":
        reader.attributes["axis"] = ir.AttrInt64("axis", -1)
        for part in reader.outputs:
            channels = width(part)
            part.shape = ir.Shape([*(sizes(reader.inputs[0]) or ())[:2], channels])
            for node, _ in list(part.uses()):
                _give_axes(node)
        return
    tokens, graph = reader.inputs[0], reader.graph
    assert tokens is not None
    assert graph is not None
    if sizes(reader.outputs[0]) == sizes(tokens):
        ir.convenience.replace_all_uses_with(reader.outputs[0], tokens)
        graph.remove(reader, safe=True)


def _channels(rows: ir.Value) -> int:
    channels = width(rows)
    assert channels is not None
    return channels


def _put_back_at(leaving: Collection[ir.Node]) -> dict[ir.Value, list[tuple[ir.Node, int]]]:
    """Rows that are put back -> who reads them: before a Split that only gives to ``leaving``, once for all parts."""
    readers: dict[ir.Value, list[tuple[ir.Node, int]]] = {}
    for node in leaving:
        rows = node.inputs[0]
        assert rows is not None
        if node.outputs[0].is_graph_output():
            continue
        split = producer(rows, "Split")
        if split is not None and split.inputs[0] is not None:
            uses = [user for output in split.outputs for user, _ in output.uses()]
            if all(user in leaving and not user.outputs[0].is_graph_output() for user in uses):
                readers[split.inputs[0]] = [(split, 0)]
                continue
        readers.setdefault(rows, []).append((node, 0))
    return readers


def _give(graph: ir.Graph, g: Builder, reshape: ir.Node, unpads: ir.Value, padding: _Padding) -> None:
    """An output of the graph for all tokens: zeros for padding that was left out."""
    rows, shape = reshape.inputs
    value = reshape.outputs[0]
    assert rows is not None
    output = g.if_(
        unpads,
        lambda: g.Reshape(padding.put_back(rows, padding.zeros(_channels(rows))), shape, allowzero=1),
        lambda: g.Reshape(rows, shape, allowzero=1),
        branches=("put_back", "all_tokens"),
        name=str(value.name),
        types=[_FLOAT],
    )
    graph.insert_before(reshape, g.take())
    replace(value, output)
    graph.remove(reshape, safe=True)
