"""Attention nodes that add the same to their scores share one node that computes it (`posexport.lowering.bias`)."""

from collections import defaultdict
from dataclasses import replace

import onnx_ir as ir

from posexport.graph.edits import take_place
from posexport.ops.attention import AttentionKind, kinds
from posexport.ops.operator import DOMAIN
from posexport.passes.graph_pass import GraphPass, PassResult
from posexport.targets.target import Target


class SharedBias(GraphPass):
    """Layers with the same score term, mask and order."""

    name = "shared-bias"
    description = "layers with the same attention bias compute it once"

    def apply(self, model: ir.Model, target: Target) -> PassResult:
        """Counts attention nodes that share a bias."""
        del target
        by_bias: dict[tuple[object, ...], list[tuple[ir.Node, AttentionKind]]] = defaultdict(list)
        refused = []
        for node in model.graph:
            kind = kinds().get(node.op_type) if node.domain == DOMAIN else None
            if kind is None:
                continue
            if kind.bias is None or kind.static:
                refused.append("what is added to its scores depends on queries or keys, or is the mask alone")
                continue
            scale, heads = (node.attributes[name].value for name in ("scale", "heads"))
            summands = tuple(id(value) for name, value in _inputs(node, kind).items() if name in kind.bias.inputs)
            # a score term that is scaled is not the same in layers that scale it differently
            scaled = scale if kind.scores and kind.scores.scaled else None
            by_bias[kind.bias.name, summands, heads, scaled].append((node, kind))
        shared = 0
        for group in by_bias.values():
            if len(group) > 1:
                _share(group)
                shared += len(group)
            else:
                refused.append("no other attention adds the same to its scores")
        return PassResult(shared, tuple(dict.fromkeys(refused)))


def _share(group: list[tuple[ir.Node, AttentionKind]]) -> None:
    """One node for the bias before the first attention, which all of ``group`` read."""
    first, kind = group[0]
    assert kind.bias is not None
    assert first.graph is not None
    inputs = [_inputs(first, kind)[name] for name in kind.bias.inputs]
    bias = ir.node(kind.bias.name, inputs, dict(first.attributes), domain=DOMAIN, version=1, name=f"{first.name}_bias")
    value = bias.outputs[0]
    value.name, value.type = f"{first.outputs[0].name}_bias", first.outputs[0].type
    first.graph.insert_before(first, bias)
    for node, own in group:
        biased = replace(own, biased=True)
        named = {**_inputs(node, own), "bias": value}
        attention = ir.node(
            biased.name,
            [named[name] for name in biased.inputs],
            dict(node.attributes),
            domain=DOMAIN,
            version=1,
            name=node.name,
            num_outputs=len(node.outputs),
        )
        take_place(attention, node)


def _inputs(node: ir.Node, kind: AttentionKind) -> dict[str, ir.Value | None]:
    """The inputs of an attention node by name."""
    return dict(zip(kind.inputs, node.inputs, strict=True))
