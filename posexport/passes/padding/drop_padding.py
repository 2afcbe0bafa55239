"""Padding leaves what works token by token, and attention goes row by row: a batch costs what its real tokens cost.

Rows of real tokens are gathered before the first region that works token by token (`posexport.passes.token_regions`),
and put back where the graph gives a value for every token; between regions each row of the batch has attention of its
own length. Inputs and outputs stay as they are; outputs for tokens of padding are zeros.

Whether that pays is decided once in a call, by its mask. Where it does not, as without padding, each If takes the
branch that has the nodes as they were, and rows are those of all tokens: nothing is gathered between layers. A graph
has its large weights outside of branches, once.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from posexport.graph.builder import Builder
from posexport.graph.edits import replace
from posexport.graph.queries import producer, sizes, width
from posexport.ops.attention import AttentionSpec
from posexport.ops.operator import DOMAIN
from posexport.passes.flat_tokens import flatten
from posexport.passes.graph_pass import Context, GraphPass, PassResult
from posexport.passes.padding import prefill, real_tokens
from posexport.passes.padding.between import Between
from posexport.passes.padding.mask import PaddingMask, padding_mask
from posexport.passes.padding.real_tokens import RealTokens
from posexport.passes.padding.rows import builder, enters, gather, is_rows
from posexport.targets.dtypes import MODEL_DTYPE
from posexport.targets.target import Target

_FLOAT = ir.DataType[MODEL_DTYPE.onnx]
#: that take some of the tokens
_SELECT = {"Gather", "GatherND", "GatherElements", "Slice"}

#: that give what they read in another form, such as keys for cross attention
_LAYOUT = {"Transpose", "Reshape", "Identity", "Cast"}
#: that compute each value from those at its place
_ELEMENTWISE = {"Where", "Add", "Sub", "Mul", "Neg", "Sigmoid"}


class DropPadding(GraphPass):
    """Linear layers on the rows of real tokens, and attention row by row, in batches with enough padding.

    Before: ``Reshape [B * T, C] -> Gemm -> posexport::Attention (mask) -> Gemm``
    After:  ``Gather(.., real tokens) -> Gemm -> If(padding, Loop of posexport::Attention) -> Gemm -> ScatterND``

    For ONNX Runtime on the CPU; every attention of the graph must drop the same padding.
    """

    name = "drop-padding"
    phase = "padding"
    description = "linear layers and attention on real tokens only where a batch has padding"

    def refusal(self, target: Target) -> str | None:
        if target.flat:
            return "the graph may hold no Loop (--inline)"
        return None if target.dtype == MODEL_DTYPE else f"not made for {target.dtype.name}"

    def why_not_preferred(self, target: Target) -> str | None:
        if target.provider is None or target.waits_to_branch:
            return "it is for ONNX Runtime on the CPU; use --target cpu"
        return super().why_not_preferred(target)

    def apply(self, model: ir.Model, context: Context) -> PassResult:
        """Counts attention that goes row by row."""
        if context.target.steps:
            dropped = prefill.drop(model)
            return PassResult(rejected=(dropped,)) if isinstance(dropped, str) else PassResult(nodes=dropped)
        mask = padding_mask(model)
        if isinstance(mask, str):
            return PassResult(rejected=(mask,))
        flatten(model.graph)
        flow = _Flow.of(model.graph, mask)
        reason = flow.refusal()
        if reason is not None:
            return PassResult(rejected=(reason,))
        _drop(model, mask, flow)
        return PassResult(nodes=len(flow.between))


@dataclass
class _Flow:
    """How rows of tokens go through a graph.

    Rows that neither feed attention nor read what it gives, such as norms between convolutions, are those of all tokens
    and stay: they are none of these.

    Attributes:
        matrices: the values with a row for every token, [B T, C].
        entering: Reshapes from [B, T, C] to rows that are not computed by attention.
        between: attention, from rows to rows.
        leaving: Reshapes of rows to what is not read by attention.
        strays: nodes that read rows otherwise.
    """

    mask: PaddingMask
    matrices: set[ir.Value] = field(default_factory=set)
    entering: list[ir.Node] = field(default_factory=list)
    between: list[Between] = field(default_factory=list)
    leaving: list[ir.Node] = field(default_factory=list)
    strays: list[ir.Node] = field(default_factory=list)

    @classmethod
    def of(cls, graph: ir.Graph, mask: PaddingMask) -> "_Flow":
        flow = cls(mask)
        entering: list[ir.Node] = []
        exits: list[ir.Node] = []
        strays: list[ir.Node] = []
        by_row: list[ir.Node] = []
        matrices: set[ir.Value | None] = set()
        #: of rows, but none themselves
        computed: set[ir.Value | None] = set()
        for node in graph:
            if enters(node, mask.lead):
                nodes = _back_to_rows(graph, node, computed)
                if any(each.domain == DOMAIN for each in nodes):
                    flow.between.append(Between(nodes, mask.lead, mask.values))
                else:
                    entering.append(node)
                matrices.add(node.outputs[0])
            elif matrices.intersection(node.inputs):
                if is_rows(node.outputs[0]) and node.op_type != "Reshape":
                    matrices |= set(node.outputs)
                    by_row.append(node)
                    continue
                (exits if node.op_type == "Reshape" else strays).append(node)
                computed |= set(node.outputs)
            elif computed.intersection(node.inputs):
                computed |= set(node.outputs)
        inside = {node for each in flow.between for node in each.nodes}
        of_attention = {value for node in inside for value in (*node.inputs, *node.outputs)} & matrices
        flow.matrices = _connected(by_row, of_attention, matrices)
        flow.entering = [node for node in entering if node.outputs[0] in flow.matrices]
        flow.leaving = [node for node in exits if node not in inside and node.inputs[0] in flow.matrices]
        flow.strays = [node for node in strays if flow.matrices.intersection(node.inputs)]
        return flow

    def refusal(self) -> str | None:
        """Why padding cannot be left out."""
        if not self.between:
            return "there is no attention between two regions that work token by token"
        if self.strays:
            return f"{self.strays[0].op_type} reads rows of tokens as another matrix"
        reasons = [each.refusal(self.matrices) for each in self.between]
        reasons += [self._reader_refusal(node) for node in self.leaving]
        return next(filter(None, reasons), None)

    @property
    def counts_from_first(self) -> bool:
        """Something reads tokens by their place, such as the first one, or adds to scores by other than distances."""
        specs = [AttentionSpec.of(node) for between in self.between for node in between.nodes]
        by_place = [op for spec in specs if spec is not None for op in spec.operators.values() if not op.shifts]
        readers = [user for node in self.leaving for user in self._readers(node.outputs[0])]
        return bool(by_place) or any(user.op_type in _SELECT for user in readers)

    def _reader_refusal(self, leaving: ir.Node) -> str | None:
        """Why zeros may not stand for what ``leaving`` gives at padding."""
        if self._is_masked(leaving):
            return None
        others = (user for user in self._readers(leaving.outputs[0]) if user.op_type not in _SELECT)
        return next((f"{user.op_type} may read the hidden states of padding" for user in others), None)

    def _readers(self, value: ir.Value) -> Iterator[ir.Node]:
        """What may read ``value`` at padding, as it is or token by token in another form."""
        for user, _ in value.uses():
            others = [other for other in user.inputs if other is not None and other is not value]
            masks = user.op_type in ("Where", "Mul") and any(self.mask.decides(other) for other in others)
            # rows of real tokens are gathered again
            if masks or enters(user, self.mask.lead):
                continue
            if user.op_type in _LAYOUT or self._works_by_token(user):
                yield from self._readers(user.outputs[0])
            else:
                yield user

    def _works_by_token(self, node: ir.Node) -> bool:
        """What it computes for padding stays there, and is given to nobody."""
        result = node.outputs[0]
        by_token = not node.domain and node.op_type in _ELEMENTWISE and (sizes(result) or ())[:2] == self.mask.lead
        return by_token and not result.is_graph_output()

    def _is_masked(self, leaving: ir.Node) -> bool:
        """Rows of padding are zeros already: they were multiplied by the mask."""
        product = producer(leaving.inputs[0], "Mul")
        for factor in product.inputs if product is not None else ():
            entering = None if factor is None else producer(factor, "Reshape")
            if entering is not None and self.mask.decides(entering.inputs[0]):
                return True
        return False


def _connected(
    by_row: Sequence[ir.Node], rows: Collection[ir.Value | None], matrices: Collection[ir.Value | None]
) -> set[ir.Value]:
    """Those of ``matrices`` that nodes ``by_row`` connect with ``rows``, in whichever direction."""
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
    """The nodes that compute ``last`` from rows."""
    nodes, waiting = {last}, [last]
    while waiting:
        for value in waiting.pop().inputs:
            node = None if value is None else value.producer()
            if value in computed and node is not None and node not in nodes:
                nodes.add(node)
                waiting.append(node)
    return [node for node in graph if node in nodes]


def _drop(model: ir.Model, mask: PaddingMask, flow: _Flow) -> None:
    graph = model.graph
    g = builder(model)
    real = real_tokens.find(g, mask.tokens, from_first=flow.counts_from_first)
    # before all that reads rows, whatever the order of nodes
    graph.insert_before(graph[0], [*_taken_out(graph, mask.tokens), *g.take()])
    gather(graph, g, flow.entering, real.keep)
    for between in flow.between:
        _put(between.nodes, g, _context(g, between, real))
    for node in flow.leaving:
        if node.outputs[0].is_graph_output():
            for own in _for_readers(node):
                _put([own], g, _for_all_tokens(g, own, real))
        _put([node], g, _for_all_tokens(g, node, real))


def _taken_out(graph: ir.Graph, value: ir.Value) -> list[ir.Node]:
    """The nodes that compute ``value``, no longer in the graph."""
    needed = {value}
    for node in reversed(graph):
        if needed.intersection(node.outputs):
            needed.update(each for each in node.inputs if each is not None)
    nodes = [node for node in graph if needed.intersection(node.outputs)]
    graph.remove(nodes)
    return nodes


def _for_readers(reshape: ir.Node) -> list[ir.Node]:
    """A copy for what reads an output of the graph, which is zeros for padding that was computed too."""
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
    """What attention gives to rows."""
    return g.if_(
        real.pays,
        lambda: between.by_row(g, real),
        lambda: between.at_once(g),
        branches=("row_by_row", "all_rows"),
        name=str(between.rows.name),
        types=[_FLOAT],
    )


def _for_all_tokens(g: Builder, reshape: ir.Node, real: RealTokens) -> ir.Value:
    """Rows with their axes of batch and tokens; zeros for padding, in what the graph gives whatever was computed."""
    rows, shape = reshape.inputs
    value = reshape.outputs[0]
    assert rows is not None
    channels = width(rows)
    assert channels is not None

    def put_back() -> ir.Value:
        zeros = g.ConstantOfShape(g.shape(g.Reshape(g.Size(real.mask), [1]), [channels]))
        return g.Reshape(g.ScatterND(zeros, g.Unsqueeze(real.keep, [1]), rows), shape, allowzero=1)

    def as_it_is() -> ir.Value:
        all_rows = rows
        if value.is_graph_output():
            is_real = g.Cast(g.Reshape(real.mask, [-1, 1]), to=ir.DataType.BOOL)
            all_rows = g.Where(is_real, rows, 0.0)
        return g.Reshape(all_rows, shape, allowzero=1)

    return g.if_(
        real.pays,
        put_back,
        as_it_is,
        branches=("put_back", "all_tokens"),
        name=str(value.name),
        types=[_FLOAT],
    )


def _put(nodes: Sequence[ir.Node], g: Builder, result: ir.Value) -> None:
    """What ``g`` built in the place of ``nodes``, whose last gives what is now ``result``."""
    last = nodes[-1]
    graph = last.graph
    assert graph is not None
    graph.insert_before(last, g.take())
    replace(last.outputs[0], result)
    graph.remove(nodes, safe=True)
