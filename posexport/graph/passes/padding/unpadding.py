"""Unpadding: linear layers run on real tokens only, and attention runs row by row, so padding costs nothing.

The rows of real tokens are gathered before the first token-wise region (`posexport.graph.passes.token_regions`), and
scattered back (re-padding) where an output of the graph has a value for every token. Between regions, a Loop computes
attention for each row of the batch at its length without padding. Inputs and outputs keep their shapes; outputs at
padding are zeros.

The graph decides by the mask, once per call, whether a batch has enough padding. If not, every If executes a copy of
the original nodes on the rows of all tokens, and nothing is gathered. Large weights are outside of the branches, so
they are stored once.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from posexport.base.refusal import Refusal
from posexport.base.targets.dtypes import MODEL_DTYPE
from posexport.base.targets.target import Target
from posexport.graph.builder import Builder
from posexport.graph.edits import replace
from posexport.graph.ops.attention import AttentionSpec
from posexport.graph.ops.operator import DOMAIN
from posexport.graph.passes.flat_tokens import flatten
from posexport.graph.passes.graph_pass import Context, GraphPass, PassResult
from posexport.graph.passes.padding import prefill, real_tokens
from posexport.graph.passes.padding.around_attention import AroundAttention
from posexport.graph.passes.padding.between import Between
from posexport.graph.passes.padding.mask import PaddingMask, padding_mask
from posexport.graph.passes.padding.real_tokens import RealTokens
from posexport.graph.passes.padding.rows import builder, enters, gather, is_rows
from posexport.graph.queries import producer, sizes, width

_FLOAT = ir.DataType[MODEL_DTYPE.onnx]
#: operators that select tokens
_SELECT = {"Gather", "GatherND", "GatherElements", "Slice"}

#: operators that only change the layout, for example of keys for cross-attention
_LAYOUT = {"Transpose", "Reshape", "Identity", "Cast"}
#: elementwise operators
_ELEMENTWISE = {"Where", "Add", "Sub", "Mul", "Neg", "Sigmoid"}


class Unpadding(GraphPass):
    """Run linear layers on the rows of real tokens, and attention row by row, in batches with enough padding.

    Before: ``Reshape [B * T, C] -> Gemm -> posexport::Attention (mask) -> Gemm``
    After:  ``Gather(.., real tokens) -> Gemm -> If(padding, Loop of posexport::Attention) -> Gemm -> ScatterND``

    For ONNX Runtime on the CPU. Every attention of the graph must have the same padding mask.
    """

    name = "unpadding"
    phase = "padding"
    description = "linear layers and attention on real tokens only where a batch has padding"

    def refusal(self, target: Target) -> str | None:
        return "the graph may hold no branch (--inline)" if target.inline else None

    def why_not_preferred(self, target: Target) -> str | None:
        if target.provider is None:
            return "it is for ONNX Runtime; use --target cpu"
        if target.waits_to_branch:
            return f"not measured on {target.provider.label}; use --unpad"
        return super().why_not_preferred(target)

    def apply(self, model: ir.Model, context: Context) -> PassResult:
        """Apply the pass; the result counts attention that goes row by row."""
        if context.target.steps:
            dropped = prefill.drop(model, context.target)
            return PassResult(rejected=(dropped.reason,)) if isinstance(dropped, Refusal) else PassResult(nodes=dropped)
        mask = padding_mask(model)
        if isinstance(mask, Refusal):
            return PassResult(rejected=(mask.reason,))
        flatten(model.graph)
        flow = _Flow.of(model.graph, mask)
        around = context.target.waits_to_branch or context.target.flat
        reason = flow.refusal(by_row=not around)
        if reason is not None:
            return PassResult(rejected=(reason,))
        (_drop_around_attention if around else _drop)(model, mask, flow)
        return PassResult(nodes=len(flow.between))


@dataclass
class _Flow:
    """The data flow of rows of tokens through a graph.

    Rows that neither feed attention nor depend on it, for example norms between convolutions, are not included: they
    keep the rows of all tokens.

    Attributes:
        matrices: the values with a row for every token, [B T, C].
        entering: Reshapes from [B, T, C] to rows, except those of attention.
        between: attention with the nodes around it, from rows to rows.
        leaving: Reshapes from rows to values that attention does not read.
        strays: nodes that use rows in another way, which prevents the pass.
    """

    mask: PaddingMask
    matrices: set[ir.Value] = field(default_factory=set)
    entering: list[ir.Node] = field(default_factory=list)
    between: list[Between] = field(default_factory=list)
    leaving: list[ir.Node] = field(default_factory=list)
    strays: list[ir.Node] = field(default_factory=list)

    @classmethod
    def of(cls, graph: ir.Graph, mask: PaddingMask) -> "_Flow":
        """Classify the nodes of ``graph``, which is flattened to rows (`flatten`)."""
        flow = cls(mask)
        entering: list[ir.Node] = []
        exits: list[ir.Node] = []
        strays: list[ir.Node] = []
        by_row: list[ir.Node] = []
        matrices: set[ir.Value | None] = set()
        #: values that depend on rows and are not rows
        computed: set[ir.Value | None] = set()
        # in topological order: entering, token-wise, leaving or other nodes
        for node in graph:
            if enters(node, mask.lead):
                nodes = _back_to_rows(graph, node, computed)
                if any(inner.domain == DOMAIN for inner in nodes):
                    flow.between.append(Between(nodes, mask.lead, mask.values))
                else:
                    entering.append(node)
                matrices.add(node.outputs[0])
            elif matrices.intersection(node.inputs):
                if is_rows(node.outputs[0]) and node.op_type != "Reshape" and not _mixes(node, matrices):
                    matrices |= set(node.outputs)
                    by_row.append(node)
                    continue
                (exits if node.op_type == "Reshape" else strays).append(node)
                computed |= set(node.outputs)
            elif computed.intersection(node.inputs):
                computed |= set(node.outputs)
        # keep only rows that are connected with attention
        inside = {node for between in flow.between for node in between.nodes}
        of_attention = {value for node in inside for value in (*node.inputs, *node.outputs)} & matrices
        flow.matrices = _connected(by_row, of_attention, matrices)
        flow.entering = [node for node in entering if node.outputs[0] in flow.matrices]
        flow.leaving = [node for node in exits if node not in inside and node.inputs[0] in flow.matrices]
        flow.strays = [node for node in strays if flow.matrices.intersection(node.inputs)]
        return flow

    def refusal(self, *, by_row: bool) -> str | None:
        """The reason why the pass does not apply, or None; ``by_row``: attention goes row by row."""
        if not self.between:
            return "there is no attention between two regions that work token by token"
        if self.strays:
            return f"{self.strays[0].op_type} reads rows of tokens as another matrix"
        reasons = [between.refusal(self.matrices, by_row=by_row) for between in self.between]
        reasons += [self._reader_refusal(node) for node in self.leaving]
        return next(filter(None, reasons), None)

    @property
    def counts_from_first(self) -> bool:
        """Whether the graph reads tokens by index, or has a score operator that depends on absolute positions.

        Then the tokens of a row must begin at its first slot.
        """
        specs = [AttentionSpec.of(node) for between in self.between for node in between.nodes]
        by_place = [op for spec in specs if spec is not None for op in spec.operators.values() if not op.shifts]
        readers = [user for node in self.leaving for user in self._readers(node.outputs[0])]
        return bool(by_place) or any(user.op_type in _SELECT for user in readers)

    def _reader_refusal(self, leaving: ir.Node) -> str | None:
        """The reason why the output of ``leaving`` must not be zero at padding, or None."""
        if self._is_masked(leaving):
            return None
        readers = (user for user in self._readers(leaving.outputs[0]) if user.op_type not in _SELECT)
        return next((f"{user.op_type} may read the hidden states of padding" for user in readers), None)

    def _readers(self, value: ir.Value) -> Iterator[ir.Node]:
        """Nodes that may read elements of ``value`` at padding, directly or after layout and elementwise operators."""
        for user, _ in value.uses():
            operands = [other for other in user.inputs if other is not None and other is not value]
            masks = user.op_type in ("Where", "Mul") and any(self.mask.decides(other) for other in operands)
            # masked, or gathered to real tokens again
            if masks or enters(user, self.mask.lead):
                continue
            if user.op_type in _LAYOUT or self._works_by_token(user):
                yield from self._readers(user.outputs[0])
            else:
                yield user

    def _works_by_token(self, node: ir.Node) -> bool:
        """Whether the node is elementwise over tokens, and no output of the graph."""
        result = node.outputs[0]
        by_token = not node.domain and node.op_type in _ELEMENTWISE and (sizes(result) or ())[:2] == self.mask.lead
        return by_token and not result.is_graph_output()

    def _is_masked(self, leaving: ir.Node) -> bool:
        """Whether the rows of padding are zeros already, since they were multiplied by the mask."""
        product = producer(leaving.inputs[0], "Mul")
        for factor in product.inputs if product is not None else ():
            entering = None if factor is None else producer(factor, "Reshape")
            if entering is not None and self.mask.decides(entering.inputs[0]):
                return True
        return False


def _mixes(node: ir.Node, matrices: Collection[ir.Value | None]) -> bool:
    """Whether ``node`` reads a matrix that is not known to have a row for every token beside one that has."""
    return any(value is not None and is_rows(value) and value not in matrices for value in node.inputs)


def _connected(
    by_row: Sequence[ir.Node], rows: Collection[ir.Value | None], matrices: Collection[ir.Value | None]
) -> set[ir.Value]:
    """The values of ``matrices`` that nodes ``by_row`` connect with ``rows``, in either direction."""
    connected = {value for value in rows if value is not None}
    while True:
        before = len(connected)
        for node in (*by_row, *reversed(by_row)):
            values = {value for value in (*node.inputs, *node.outputs) if value is not None and value in matrices}
            if values & connected:
                connected |= values
        if len(connected) == before:
            return connected


def _back_to_rows(graph: ir.Graph, last: ir.Node, computed: Collection[ir.Value | None]) -> list[ir.Node]:
    """The nodes between rows and ``last``, in topological order."""
    nodes, waiting = {last}, [last]
    while waiting:
        for value in waiting.pop().inputs:
            node = None if value is None else value.producer()
            if value in computed and node is not None and node not in nodes:
                nodes.add(node)
                waiting.append(node)
    return [node for node in graph if node in nodes]


def _drop(model: ir.Model, mask: PaddingMask, flow: _Flow) -> None:
    """Rewrite the graph: gather real tokens, attention row by row, re-padding."""
    graph = model.graph
    g = builder(model)
    real = real_tokens.find(g, mask.tokens, from_first=flow.counts_from_first)
    # move the nodes of the mask to the start of the graph, before all readers
    graph.insert_before(graph[0], [*_removed(graph, mask.tokens), *g.take()])
    gather(graph, g, flow.entering, real.keep)
    for between in flow.between:
        _put(between.nodes, g, _context(g, between, real))
    for node in flow.leaving:
        if node.outputs[0].is_graph_output():
            for copy in _for_readers(node):
                _put([copy], g, _for_all_tokens(g, copy, real))
        _put([node], g, _for_all_tokens(g, node, real))


def _drop_around_attention(model: ir.Model, mask: PaddingMask, flow: _Flow) -> None:
    """Rewrite the graph for a device: gather real tokens, re-padding around attention and at the end."""
    graph = model.graph
    g = builder(model)
    around = AroundAttention(g, mask)
    graph.insert_before(graph[0], [*_removed(graph, mask.tokens), *g.take()])
    gather(graph, g, flow.entering, around.keep)
    for between in flow.between:
        _put(between.nodes, g, around.context(between, flow.matrices))
    for node in flow.leaving:
        _put([node], g, around.for_all_tokens(node))


def _removed(graph: ir.Graph, value: ir.Value) -> list[ir.Node]:
    """Remove the nodes that compute ``value`` from the graph, and return them."""
    needed = {value}
    for node in reversed(graph):
        if needed.intersection(node.outputs):
            needed.update(value for value in node.inputs if value is not None)
    nodes = [node for node in graph if needed.intersection(node.outputs)]
    graph.remove(nodes)
    return nodes


def _for_readers(reshape: ir.Node) -> list[ir.Node]:
    """A copy of ``reshape`` for its readers, if it is an output of the graph, where padding is always zeroed."""
    value = reshape.outputs[0]
    readers = list(value.uses())
    if not readers:
        return []
    inner = Builder.at(reshape).op(
        "Reshape", *reshape.inputs, allowzero=1, name=f"{value.name}_read", shape=value.shape
    )
    for reader, place in readers:
        reader.replace_input_with(place, inner)
    copy = inner.producer()
    assert copy is not None
    return [copy]


def _context(g: Builder, between: Between, real: RealTokens) -> ir.Value:
    """The rows of the context: attention row by row if unpadding pays, else for the whole batch."""
    return g.if_(
        real.unpads,
        lambda: between.by_row(g, real),
        lambda: between.at_once(g),
        branches=("row_by_row", "all_rows"),
        name=str(between.rows.name),
        types=[_FLOAT],
    )


def _for_all_tokens(g: Builder, reshape: ir.Node, real: RealTokens) -> ir.Value:
    """Re-padding: rows to [B, T, C]. Padding is zero after unpadding, and always in outputs of the graph."""
    rows, shape = reshape.inputs
    value = reshape.outputs[0]
    assert rows is not None
    channels = width(rows)
    assert channels is not None

    def repadded() -> ir.Value:
        zeros = g.ConstantOfShape(g.shape(g.Reshape(g.Size(real.mask), [1]), [channels]))
        return g.Reshape(g.ScatterND(zeros, g.Unsqueeze(real.keep, [1]), rows), shape, allowzero=1)

    def of_all_tokens() -> ir.Value:
        all_rows = rows
        if value.is_graph_output():
            is_real = g.Cast(g.Reshape(real.mask, [-1, 1]), to=ir.DataType.BOOL)
            all_rows = g.Where(is_real, rows, 0.0)
        return g.Reshape(all_rows, shape, allowzero=1)

    return g.if_(
        real.unpads,
        repadded,
        of_all_tokens,
        branches=("put_back", "all_tokens"),
        name=str(value.name),
        types=[_FLOAT],
    )


def _put(nodes: Sequence[ir.Node], g: Builder, result: ir.Value) -> None:
    """Replace ``nodes`` by the nodes that ``g`` built; ``result`` replaces the output of the last one."""
    last = nodes[-1]
    graph = last.graph
    assert graph is not None
    graph.insert_before(last, g.take())
    replace(last.outputs[0], result)
    graph.remove(nodes, safe=True)
