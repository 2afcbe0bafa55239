"""Finds attention nodes whose keys and values were just written to a cache of fixed size, and lets them write it.

ONNX Runtime's GroupQueryAttention does both, and reads the cache where it stands.
"""

from dataclasses import replace

import onnx_ir as ir

from posexport.graph.edits import take_place
from posexport.graph.queries import sizes
from posexport.lowering.lowering import Lowering
from posexport.ops.attention import AttentionKind, kinds
from posexport.ops.cached_calls import OF_CALL
from posexport.ops.operator import DOMAIN
from posexport.targets.target import Target


def write(model: ir.Model, lowering: Lowering[AttentionKind], target: Target) -> int:
    """Put the writing into attention nodes that ``lowering`` then applies to; how many it was."""
    known = kinds()
    joined = 0
    calls: dict[tuple[object, ...], ir.Node] = {}
    for node in list(model.graph):
        kind = known.get(node.op_type) if node.domain == DOMAIN else None
        if kind is None or kind.cached:
            continue
        whole = replace(kind, static=False, cached=True)
        written = [_written(value) for value in node.inputs[1:3]]
        size = head_size(node)
        if whole.name not in known or lowering.refusal(replace(whole, head_size=size), target) is not None:
            continue
        k_written, v_written = written
        if k_written is None or v_written is None:
            continue
        named = dict(zip(kind.inputs, node.inputs, strict=True))
        about = tuple(named[name] for name in ("mask", "qpos", "kpos"))
        past_k = k_written.inputs[0]
        # layers whose caches have the same places share what is said of a call
        shape = sizes(past_k)
        alike = (*about, shape[2] if shape else past_k)
        if alike not in calls:
            calls[alike] = ir.node(
                "CachedCalls",
                [*about, past_k],
                domain=DOMAIN,
                version=1,
                num_outputs=len(OF_CALL),
            )
            for output, name in zip(calls[alike].outputs, OF_CALL, strict=True):
                output.name = f"{node.name}_{name}"
            calls[alike].name = f"{node.name}_calls"
            model.graph.insert_before(node, calls[alike])
        given = [node.inputs[0], k_written.inputs[1], v_written.inputs[1], k_written.inputs[0], v_written.inputs[0]]
        given += calls[alike].outputs
        made = ir.node(
            whole.name,
            [*given, *node.inputs[3:]],
            dict(node.attributes),
            domain=DOMAIN,
            version=1,
            name=node.name,
            num_outputs=3,
        )
        between = [value.producer() if value is not None else None for value in node.inputs[1:3]]
        take_place(made, node)
        for step, scatter, output in zip(between, (k_written, v_written), made.outputs[1:], strict=True):
            if step is not None and step is not scatter and not any(o.uses() for o in step.outputs):
                model.graph.remove(step, safe=True)
            old = scatter.outputs[0]
            output.name, output.type, output.shape = old.name, old.type, old.shape
            ir.convenience.replace_all_uses_with(old, output, replace_graph_outputs=True)
            model.graph.remove(scatter, safe=True)
        joined += 1
    return joined


def head_size(node: ir.Node) -> int | None:
    """The size of a head of an attention node; None where the graph does not say."""
    query = node.inputs[0]
    if query is None or query.shape is None:
        return None
    last, joined = query.shape[-1], len(query.shape) == 3
    return (last // node.attributes["heads"].as_int() if joined else last) if isinstance(last, int) else None


def _written(value: ir.Value | None) -> ir.Node | None:
    """The TensorScatter that ``value`` or what it is the first places of comes from."""
    node = value.producer() if value is not None else None
    if node is not None and node.op_type == "Slice" and not node.domain and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    return node if node is not None and node.op_type == "TensorScatter" and not node.domain else None
