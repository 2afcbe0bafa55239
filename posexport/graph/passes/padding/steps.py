"""Decode steps without padding: rows of tokens are rows of the batch, and stay as they are around attention.

Where every row has one new token and none of them is padding, nothing has to be put back before attention, left out
after it, or replaced by zeros in between. One If in each layer decides for that and for attention itself: one branch
has a copy of the nodes with attention of a single token, the other has the nodes as they were.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial

import onnx_ir as ir

from posexport.base.targets.dtypes import MODEL_DTYPE
from posexport.graph import edits
from posexport.graph.builder import Builder
from posexport.graph.ops.attention import AttentionSpec
from posexport.graph.ops.rotation import RotationSpec
from posexport.graph.passes.padding.between import copy
from posexport.graph.queries import sizes

_FLOAT = ir.DataType[MODEL_DTYPE.onnx]


@dataclass(frozen=True)
class _Between:
    """The nodes between two linear layers, from a ScatterND to the GatherND that leaves rows out.

    Attributes:
        attention: the only one of them, which appends to a static KV cache.
        selections: each a Where, of contexts and of the value at padding.
    """

    nodes: list[ir.Node]
    attention: ir.Node
    selections: list[ir.Node]

    @classmethod
    def after(cls, scatter: ir.Node) -> "_Between | None":
        """None where any other node reads one of their outputs, or there is other attention."""
        between, left = {scatter}, [scatter]
        while left:
            for user in {user for value in left.pop().outputs for user, _ in value.uses()} - between:
                between.add(user)
                if user.op_type != "GatherND":
                    left.append(user)
        nodes = [node for node in scatter.graph or () if node in between]
        computed = {value for node in nodes for value in node.outputs}
        attention = [node for node in nodes if (spec := AttentionSpec.of(node)) is not None and spec.cache == "append"]
        ends = [node for node in nodes if node.op_type == "GatherND"]
        if len(ends) != 1 or ends[0].inputs[1] is not scatter.inputs[1] or len(attention) != 1:
            return None
        graph_outputs = {value for value in computed if value.is_graph_output()}
        selections = [
            node
            for node in nodes
            if node.op_type == "Where"
            and not {node.inputs[0], node.inputs[2]} & computed
            and sizes(node.outputs[0]) == sizes(node.inputs[1])
        ]
        return cls(nodes, attention[0], selections) if graph_outputs <= {*attention[0].outputs[1:]} else None

    @property
    def rotations(self) -> dict[ir.Node, RotationSpec]:
        """Those whose cosines and sines are of every row."""
        specs = {node: RotationSpec.of(node) for node in self.nodes}
        return {node: spec for node, spec in specs.items() if spec is not None and not spec.shared}

    def of_rows(self, g: Builder, angles: Mapping[ir.Value, ir.Value]) -> tuple[ir.Value, ...]:
        """Rows of contexts [B, C], keys and values, of one real token in each row.

        ``angles``: cosines and sines without the axis of heads, which no layer then takes from them.
        """
        scatter, *between, gather = self.nodes
        rows = scatter.inputs[2]
        assert rows is not None
        copies, rotations = {scatter.outputs[0]: g.Unsqueeze(rows, [1])}, self.rotations
        for node in between:
            if node in self.selections and node.inputs[1] is not None:
                copies[node.outputs[0]] = copies[node.inputs[1]]
            elif node in rotations:
                of_rotation = {**copies, **angles}
                copy(g, node, of_rotation, replace(rotations[node], squeezed=True))
                copies[node.outputs[0]] = of_rotation[node.outputs[0]]
            else:
                spec = AttentionSpec.of(node) if node is self.attention else None
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


def branch(graph: ir.Graph, g: Builder, computed: ir.Value, repadded: Collection[ir.Value]) -> None:
    """Let steps without padding do without ``repadded``; ``computed``: the computed tokens, bool [B, T].

    Padding that is computed too may have no keys: the selections of contexts ask for that.
    """
    unpadded: dict[tuple[ir.Value | None, ...], ir.Value] = {}
    angles: dict[ir.Value, ir.Value] = {}
    for value in repadded:
        scatter = value.producer()
        between = None if scatter is None else _Between.after(scatter)
        if between is None:
            continue
        key = tuple(dict.fromkeys(node.inputs[0] for node in between.selections))
        if key not in unpadded:
            unpadded[key] = g.Squeeze(g.Equal(g.Shape(computed, start=1, end=2), [1]), [0])
            for condition in (computed, *key):
                every = g.ReduceMin(g.Cast(condition, to=ir.DataType.INT32), keepdims=0)
                unpadded[key] = g.And(unpadded[key], g.Cast(every, to=ir.DataType.BOOL), name="step_without_padding")
        for given in (value for node in between.rotations for value in node.inputs[1:]):
            assert given is not None
            if given not in angles:
                angles[given] = g.Squeeze(given, [1])
        rows = between.nodes[-1].outputs[0]
        results = g.if_(
            unpadded[key],
            partial(between.of_rows, g, angles),
            partial(between.as_before, g),
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
