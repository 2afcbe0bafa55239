"""Attention nodes that add the same to their scores share one node that computes it (`lowering.bias`)."""

from collections import defaultdict
from dataclasses import replace

import onnx_ir as ir

from posexport.graph.edits import take_place
from posexport.graph.ops.attention import AttentionSpec
from posexport.graph.passes.graph_pass import Context, GraphPass, PassResult


class SharedBias(GraphPass):
    """One bias for layers with the same score operator, mask and order.

    Before: ``posexport::Attention(q, k, v, mask, by_distance)`` in every layer
    After:  ``posexport::Bias(mask, by_distance) -> posexport::Attention(q, k, v, bias)`` in every layer
    """

    name = "shared-bias"
    description = "layers with the same attention bias compute it once"

    def apply(self, model: ir.Model, context: Context) -> PassResult:
        """Apply the pass; the result counts attention nodes that share a bias."""
        by_bias: dict[tuple[object, ...], list[tuple[ir.Node, AttentionSpec]]] = defaultdict(list)
        refused: list[str | None] = []
        for node in model.graph:
            spec = AttentionSpec.of(node)
            if spec is None:
                continue
            if spec.shared_bias is None:
                refused.append("what is added to its scores depends on queries or keys, or is the mask alone")
                continue
            scale, heads = (node.attributes[name].value for name in ("scale", "heads"))
            names = spec.shared_bias.inputs
            summands = tuple(id(value) for name, value in spec.named_inputs(node).items() if name in names)
            # a score term that is scaled is not the same in layers that scale it differently
            scaled = scale if spec.score_operator and spec.score_operator.scaled else None
            by_bias[spec.shared_bias, summands, heads, scaled].append((node, spec))
        for group in by_bias.values():
            if len(group) > 1:
                _share(group)
            alone = "no other attention adds the same to its scores" if len(group) == 1 else None
            refused += [alone] * len(group)
        return PassResult.of(refused)


def _share(group: list[tuple[ir.Node, AttentionSpec]]) -> None:
    """One node for the bias before the first attention, which all of ``group`` read."""
    first, spec = group[0]
    assert spec.shared_bias is not None
    assert first.graph is not None
    bias = spec.shared_bias.node(spec.named_inputs(first), like=first)
    value = bias.outputs[0]
    bias.name, value.name, value.type = f"{first.name}_bias", f"{first.outputs[0].name}_bias", first.outputs[0].type
    first.graph.insert_before(first, bias)
    for node, spec in group:
        take_place(replace(spec, bias="full").node({**spec.named_inputs(node), "bias": value}, like=node), node)
