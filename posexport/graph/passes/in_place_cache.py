"""Attention that appends its keys and values to a KV cache itself, instead of a TensorScatter or Concat before it.

ONNX Runtime's GroupQueryAttention does both, and reads a static cache in place. A dynamic cache it copies as a Concat
does; on a device it is for what has no position bias, which it then computes fused.
"""

from dataclasses import replace

import onnx_ir as ir

from posexport.base.targets.target import Target
from posexport.graph.builder import Builder
from posexport.graph.edits import take_place
from posexport.graph.lowering.lowering import Lowering
from posexport.graph.lowering.plan import FILLED_SLOTS, GROUP_QUERY
from posexport.graph.ops.attention import AttentionSpec
from posexport.graph.ops.cache import OF_CALL
from posexport.graph.ops.operator import DOMAIN
from posexport.graph.passes.graph_pass import Context, GraphPass, PassResult
from posexport.graph.queries import axis, producer

#: of keys and values [B, H, T, D], counted from the end
_TOKENS = -2


class InPlaceCache(GraphPass):
    """Attention that writes to its KV cache, where GroupQueryAttention computes it.

    Before: ``TensorScatter(past_k, k, at) -> posexport::Attention(q, k, v)``, or ``Concat(past_k, k)``
    After:  ``posexport::Attention(q, k, v, past_k, past_v) -> context, present_k, present_v``
    """

    name = "in-place-cache"
    description = "attention writes its keys and values to a KV cache, a static one in place"
    lowering: Lowering[AttentionSpec] = GROUP_QUERY
    prepares = GROUP_QUERY.name

    def refusal(self, target: Target) -> str | None:
        return target.needs_microsoft("GroupQueryAttention")

    def apply(self, model: ir.Model, context: Context) -> PassResult:
        """Apply the pass; the result counts attention nodes."""
        refused, target = [], context.target
        calls: dict[tuple[object, ...], tuple[ir.Value, ...]] = {}
        for node in list(model.graph):
            spec = AttentionSpec.of(node)
            if spec is not None and not spec.appends:
                # a device has fused attention for causal order, and none for a bias
                orders = target.waits_to_branch and self.lowering is GROUP_QUERY
                known = orders and spec.scores is None and spec.mask == "keys"
                grown = [_concat_of(value) for value in node.inputs[1:3]]
                grows = known and None not in grown
                writes = grown if grows else [_write_of(value) for value in node.inputs[1:3]]
                appended = replace(spec, cache="grow" if grows else "append", order_known=known)
                in_no_cache = "its keys and values do not come from a static KV cache" if None in writes else None
                reason = in_no_cache or self.lowering.refusal(appended, target)
                if reason is None:
                    _append(node, spec, appended, [write for write in writes if write is not None], calls)
                refused.append(reason)
        return PassResult.of(refused)


class FilledCache(InPlaceCache):
    """Attention that writes to its static KV cache and reads copies of the used slots, on a device.

    Before: ``TensorScatter(past_k, k, at) -> posexport::Attention(q, k, v)``
    After:  ``posexport::Attention(q, k, v, past_k, past_v) -> context, present_k, present_v``
    """

    name = "filled-cache"
    description = "attention writes to a static KV cache in place and reads copies of the used slots, without a branch"
    lowering = FILLED_SLOTS
    prepares = FILLED_SLOTS.name

    def refusal(self, target: Target) -> str | None:
        return None if target.waits_to_branch else "its copies pay on a device"


def _write_of(value: ir.Value | None) -> ir.Node | None:
    """The TensorScatter that wrote ``value``, or the cache that its used slots are sliced from."""
    node = value.producer() if value is not None else None
    if node is not None and node.op_type == "Slice" and not node.domain and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    return node if node is not None and node.op_type == "TensorScatter" and not node.domain else None


def _concat_of(value: ir.Value | None) -> ir.Node | None:
    """The Concat of a cache that is fed and of new tokens, which attention alone reads and the graph returns."""
    node = producer(value, "Concat")
    if node is None or value is None or len(node.inputs) != 2 or axis(node, 0) != _TOKENS:
        return None
    past = node.inputs[0]
    is_cache = past is not None and past.is_graph_input() and value.is_graph_output()
    return node if is_cache and len(value.uses()) == 1 else None


def _append(
    node: ir.Node,
    spec: AttentionSpec,
    appended: AttentionSpec,
    writes: list[ir.Node],
    calls: dict[tuple[object, ...], tuple[ir.Value, ...]],
) -> None:
    """Replace ``node`` and the ``writes`` before it by the attention that appends."""
    graph = node.graph
    assert graph is not None
    past, new = ([write.inputs[place] for write in writes] for place in (0, 1))
    inputs = spec.named_inputs(node) | dict(zip(("k", "v", "past_k", "past_v"), (*new, *past), strict=True))
    inputs |= dict(zip(OF_CALL, _call(node, spec, calls), strict=True))
    if appended.order_known:
        (inputs["order_suffices"],) = _order_suffices(inputs, node, calls)
    attention = appended.node(inputs, like=node)
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
    node: ir.Node, spec: AttentionSpec, calls: dict[tuple[object, ...], tuple[ir.Value, ...]]
) -> tuple[ir.Value, ...]:
    """The `CachedCalls` of the node, which layers share."""
    named = spec.named_inputs(node)
    inputs = (named["mask"], named["qpos"], named["kpos"])
    if inputs not in calls:
        calls[inputs] = Builder.at(node, name=node.name or "").several("CachedCalls", OF_CALL, *inputs, domain=DOMAIN)
    return calls[inputs]


def _order_suffices(
    inputs: dict[str, ir.Value | None], before: ir.Node, calls: dict[tuple[object, ...], tuple[ir.Value, ...]]
) -> tuple[ir.Value, ...]:
    """Whether causal order drops all that the mask does, in calls that the operator takes; layers share it."""
    arguments = (inputs["mask"], inputs["takes"])
    if arguments not in calls:
        g = Builder.at(before, name=before.name or "")
        calls[arguments] = g.several("OrderSuffices", ["order_suffices"], *arguments, domain=DOMAIN)
    return calls[arguments]
