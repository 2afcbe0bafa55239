"""Decode steps without padding: rows of tokens are rows of the batch, and stay as they are around attention.

Where every row has one new token and none of them is padding, nothing has to be put back before attention, left out
after it, or replaced by zeros in between. One If in each layer decides for that and for attention itself: one branch
has a copy of the nodes with attention of a single token, the other has the nodes as they were.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import onnx_ir as ir

from posexport.base.targets.dtypes import MODEL_DTYPE
from posexport.graph import edits
from posexport.graph.builder import Builder
from posexport.graph.ops.attention import AttentionSpec
from posexport.graph.passes.padding.between import copy

_FLOAT = ir.DataType[MODEL_DTYPE.onnx]


@dataclass(frozen=True)
class _Between:
    """What is between two linear layers: nodes from a ScatterND to the GatherND that leaves rows out.

    Attributes:
        attention: the only one of them, which appends to a static KV cache.
        selections: of contexts, a Where each of contexts and of what those of padding are.
    """

    nodes: list[ir.Node]
    attention: ir.Node
    selections: list[ir.Node]

    @classmethod
    def after(cls, scatter: ir.Node) -> "_Between | None":
        """None where anything else reads what is between, or there is other attention."""
        found, left = {scatter}, [scatter]
        ends: list[ir.Node] = []
        while left:
            for user in {user for value in left.pop().outputs for user, _ in value.uses()} - found:
                found.add(user)
                (ends if user.op_type == "GatherND" else left).append(user)
        attention = [node for node in found if AttentionSpec.of(node) is not None]
        given = {value for node in found for value in node.outputs if value.is_graph_output()}
        if len(ends) != 1 or len(attention) != 1 or not given <= {*attention[0].outputs[1:]}:
            return None
        spec = AttentionSpec.of(attention[0])
        if spec is None or spec.cache != "append" or scatter.graph is None:
            return None
        computed = {value for node in found for value in node.outputs}
        selections = [
            node for node in found if node.op_type == "Where" and not {node.inputs[0], node.inputs[2]} & computed
        ]
        return cls([node for node in scatter.graph if node in found], attention[0], selections)

    @property
    def step(self) -> ir.Value:
        """Whether attention is of a single token to a cache that is mostly used, bool []."""
        spec = AttentionSpec.of(self.attention)
        step = None if spec is None else spec.named_inputs(self.attention)["step"]
        assert step is not None
        return step

    def of_rows(self, g: Builder) -> tuple[ir.Value, ...]:
        """Rows of contexts [B, C], keys and values, of one real token in each row."""
        scatter, *between, gather = self.nodes
        rows = scatter.inputs[2]
        assert rows is not None
        copies = {scatter.outputs[0]: g.Unsqueeze(rows, [1])}
        for node in between:
            if node in self.selections and node.inputs[1] is not None:
                copies[node.outputs[0]] = copies[node.inputs[1]]
            else:
                spec = AttentionSpec.of(node)
                copy(g, node, copies, None if spec is None else replace(spec, single=True))
        assert gather.inputs[0] is not None
        return self._results(copies, g.Squeeze(copies[gather.inputs[0]], [1]))

    def as_before(self, g: Builder) -> tuple[ir.Value, ...]:
        copies: dict[ir.Value, ir.Value] = {}
        for node in self.nodes:
            copy(g, node, copies)
        return self._results(copies, copies[self.nodes[-1].outputs[0]])

    def _results(self, copies: Mapping[ir.Value, ir.Value], rows: ir.Value) -> tuple[ir.Value, ...]:
        return rows, *(copies[value] for value in self.attention.outputs[1:])


def branch(graph: ir.Graph, g: Builder, kept: ir.Value, scatters: Collection[ir.Node]) -> None:
    """Let steps without padding leave out ``scatters`` and what they are for; ``kept``: the computed tokens [B, T].

    Of one token in each row, some may be padding and computed: the selections say which.
    """
    plain: dict[tuple[ir.Value | None, ...], ir.Value] = {}
    for scatter in scatters:
        between = _Between.after(scatter) if scatter.graph is graph else None
        if between is None:
            continue
        conditions = dict.fromkeys(node.inputs[0] for node in between.selections)
        key = between.step, *conditions
        if key not in plain:
            plain[key] = between.step
            for condition in (kept, *conditions):
                every = g.ReduceMin(g.Cast(condition, to=ir.DataType.INT32), keepdims=0)
                plain[key] = g.And(plain[key], g.Cast(every, to=ir.DataType.BOOL), name="step_without_padding")
        rows = between.nodes[-1].outputs[0]
        results = g.if_(
            plain[key],
            lambda between=between: between.of_rows(g),
            lambda between=between: between.as_before(g),
            branches=("of_rows", "with_padding"),
            name=[f"{rows.name}", "present_k", "present_v"],
            types=[_FLOAT] * 3,
        )
        graph.insert_before(between.nodes[-1], g.take())
        decided = results[0].producer()
        assert decided is not None
        decided.name = f"If_{rows.name}"
        for old, new in zip((rows, *between.attention.outputs[1:]), results, strict=True):
            edits.replace(old, new)
        graph.remove(between.nodes, safe=True)
