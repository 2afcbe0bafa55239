"""Attention that appends its keys and values to a static KV cache itself, instead of a TensorScatter before it.

ONNX Runtime's GroupQueryAttention does both, and reads the cache where it stands.
"""

from dataclasses import replace

import onnx_ir as ir

from posexport.graph.edits import take_place
from posexport.graph.queries import sizes
from posexport.lowering.plan import GROUP_QUERY
from posexport.ops.attention import AttentionKind, kinds
from posexport.ops.cached_calls import OF_CALL
from posexport.ops.operator import DOMAIN
from posexport.passes.graph_pass import GraphPass, PassResult, distinct
from posexport.targets.target import Target


class InPlaceCache(GraphPass):
    """For attention that GroupQueryAttention computes."""

    name = "in-place-cache"
    description = "attention writes its keys and values to a static KV cache in place"
    prepares = GROUP_QUERY.name

    def refusal(self, target: Target) -> str | None:
        return target.needs_microsoft("GroupQueryAttention")

    def apply(self, model: ir.Model, target: Target) -> PassResult:
        """Counts attention nodes."""
        refused = []
        calls: dict[tuple[object, ...], ir.Node] = {}
        for node in list(model.graph):
            kind = kinds().get(node.op_type) if node.domain == DOMAIN else None
            if kind is not None and not kind.cached:
                writes = [_write_of(value) for value in node.inputs[1:3]]
                appended = replace(kind, static=False, cached=True)
                reason = _refusal(node, writes, appended, target)
                if reason is None:
                    _append(node, kind, appended, [write for write in writes if write is not None], calls)
                refused.append(reason)
        return PassResult(refused.count(None), distinct(refused))


def head_size(node: ir.Node) -> int | None:
    """The size of a head of an attention node; None where the graph does not say."""
    query = node.inputs[0]
    if query is None or query.shape is None:
        return None
    last, packed = query.shape[-1], len(query.shape) == 3
    return (last // node.attributes["heads"].as_int() if packed else last) if isinstance(last, int) else None


def _write_of(value: ir.Value | None) -> ir.Node | None:
    """The TensorScatter that wrote ``value``, or the cache of which it is the used slots."""
    node = value.producer() if value is not None else None
    if node is not None and node.op_type == "Slice" and not node.domain and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    return node if node is not None and node.op_type == "TensorScatter" and not node.domain else None


def _refusal(node: ir.Node, writes: list[ir.Node | None], appended: AttentionKind, target: Target) -> str | None:
    if None in writes:
        return "its keys and values do not come from a static KV cache"
    if appended.name not in kinds():
        return "no operator appends to a cache for attention with a base or value term, or with a sink"
    return GROUP_QUERY.refusal(replace(appended, head_size=head_size(node)), target)


def _append(
    node: ir.Node,
    kind: AttentionKind,
    appended: AttentionKind,
    writes: list[ir.Node],
    calls: dict[tuple[object, ...], ir.Node],
) -> None:
    """Put the attention that appends in the place of ``node`` and of the ``writes`` before it."""
    graph = node.graph
    assert graph is not None
    past, new = ([write.inputs[place] for write in writes] for place in (0, 1))
    inputs = [node.inputs[0], *new, *past, *_call(node, kind, past[0], calls).outputs, *node.inputs[3:]]
    attention = ir.node(
        appended.name, inputs, dict(node.attributes), domain=DOMAIN, version=1, name=node.name, num_outputs=3
    )
    slices = [value.producer() for value in node.inputs[1:3] if value is not None]
    take_place(attention, node)
    for used, write, present in zip(slices, writes, attention.outputs[1:], strict=True):
        if used is not None and used is not write and not used.outputs[0].uses():
            graph.remove(used, safe=True)
        old = write.outputs[0]
        present.name, present.type, present.shape = old.name, old.type, old.shape
        ir.convenience.replace_all_uses_with(old, present, replace_graph_outputs=True)
        graph.remove(write, safe=True)


def _call(
    node: ir.Node, kind: AttentionKind, past: ir.Value | None, calls: dict[tuple[object, ...], ir.Node]
) -> ir.Node:
    """What the node must know of a call; layers whose caches have the same capacity share it."""
    named = dict(zip(kind.inputs, node.inputs, strict=True))
    inputs = [named["mask"], named["qpos"], named["kpos"]]
    shape = sizes(past)
    key = (*inputs, shape[2] if shape else past)
    if key not in calls:
        call = ir.node("CachedCalls", [*inputs, past], domain=DOMAIN, version=1, num_outputs=len(OF_CALL))
        call.name = f"{node.name}_calls"
        for output, name in zip(call.outputs, OF_CALL, strict=True):
            output.name = f"{node.name}_{name}"
        assert node.graph is not None
        node.graph.insert_before(node, call)
        calls[key] = call
    return calls[key]
