"""Finds attention nodes that add the same to their scores, and lets them share it (`posexport.lowering.bias`)."""

from collections import defaultdict
from dataclasses import replace

import onnx_ir as ir

from posexport.graph.edits import take_place
from posexport.ops.attention import AttentionKind, kinds
from posexport.ops.operator import DOMAIN


def share(model: ir.Model) -> int:
    """Give nodes of one graph with the same term, mask and order a node that computes these; how many share one now."""
    known = kinds()
    alike: dict[tuple[object, ...], list[tuple[ir.Node, AttentionKind]]] = defaultdict(list)
    for node in model.graph:
        kind = known.get(node.op_type) if node.domain == DOMAIN else None
        if kind is not None and kind.bias is not None and not kind.static:
            scale, heads = (node.attributes[name].value for name in ("scale", "heads"))
            summands = tuple(id(value) for name, value in _given(node, kind).items() if name in kind.bias.inputs)
            # a term that is scaled is not the same in layers that scale it differently
            differs = scale if kind.scores and kind.scores.scaled else None
            alike[kind.bias.name, summands, heads, differs].append((node, kind))
    shared = 0
    for group in alike.values():
        if len(group) < 2:
            continue
        first, kind = group[0]
        assert kind.bias is not None
        summands_of_first = [_given(first, kind)[name] for name in kind.bias.inputs]
        bias = ir.node(kind.bias.name, summands_of_first, dict(first.attributes), domain=DOMAIN, version=1)
        made = bias.outputs[0]
        bias.name = f"{first.name}_bias"
        made.name, made.type = f"{first.outputs[0].name}_bias", first.outputs[0].type
        model.graph.insert_before(first, bias)
        for node, own in group:
            taken = replace(own, biased=True)
            given = {**_given(node, own), "bias": made}
            other = ir.node(
                taken.name,
                [given[name] for name in taken.inputs],
                dict(node.attributes),
                domain=DOMAIN,
                version=1,
                name=node.name,
                num_outputs=len(node.outputs),
            )
            take_place(other, node)
        shared += len(group)
    return shared


def _given(node: ir.Node, kind: AttentionKind) -> dict[str, ir.Value | None]:
    """What an attention node takes, by the names of its kind."""
    return dict(zip(kind.inputs, node.inputs, strict=True))
