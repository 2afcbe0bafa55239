"""Attention with a mask over keys alone reads the kept keys first, and their number in place of the mask.

For a device (`posexport.graph.lowering.kept_keys`). A query with all keys dropped reads something else without a mask,
so the model itself must replace the result.
"""

from dataclasses import replace

import onnx_ir as ir

from posexport.base.targets.target import KEPT_KEYS_OPSET, Target
from posexport.graph.builder import Builder
from posexport.graph.edits import take_place
from posexport.graph.lowering.plan import KEPT_KEYS
from posexport.graph.ops.attention import AttentionSpec
from posexport.graph.ops.cache import KEPT
from posexport.graph.ops.dropped_scores import drops
from posexport.graph.ops.operator import DOMAIN
from posexport.graph.passes.graph_pass import Context, GraphPass, PassResult
from posexport.graph.queries import number, only, producer


class KeptKeys(GraphPass):
    """The number of kept keys in place of a mask over keys.

    Before: ``posexport::Attention(q, k, v, mask [B, 1, 1, S])``
    After:  ``posexport::KeptKeys(mask) -> posexport::Attention(q, k, v, order, number)``

    For attention without position terms, between packed heads.
    """

    name = "kept-keys"
    description = "attention reads the keys that a mask keeps first, and their number in place of the mask"
    prepares = KEPT_KEYS.name

    def refusal(self, target: Target) -> str | None:
        return target.needs(KEPT_KEYS_OPSET, "ai.onnx Attention with a number of keys")

    def why_not_preferred(self, target: Target) -> str | None:
        if not target.waits_to_branch:
            return "a mask costs no other kernel but on a device"
        return super().why_not_preferred(target)

    def apply(self, model: ir.Model, context: Context) -> PassResult:
        """Apply the pass; the result counts attention nodes."""
        reasons: list[str | None] = []
        known: dict[ir.Value, tuple[ir.Value, ...]] = {}
        for node in list(model.graph):
            spec = AttentionSpec.of(node)
            if spec is not None:
                reasons.append(_refusal(node, spec))
                if reasons[-1] is None:
                    _count(node, spec, known)
        return PassResult.of(reasons)


def _refusal(node: ir.Node, spec: AttentionSpec) -> str | None:
    if spec.mask != "keys" or spec.causal or spec.operators or spec.sink or spec.bias != "none" or spec.cache != "none":
        return "more than a mask over keys acts on its scores, or none does"
    if not spec.packed:
        return "its heads are not packed"
    if not _keeps_or_drops(spec.named_inputs(node)["mask"]):
        return "its mask is not known to keep or drop keys, and nothing between"
    reader = only(node.outputs[0])
    if reader is None or reader.op_type != "Where" or reader.inputs[1] is not node.outputs[0]:
        return "what a query reads without keys is not put in place"
    return None


def _keeps_or_drops(mask: ir.Value | None) -> bool:
    """A mask chosen from 0 and the lowest score."""
    chosen = producer(mask, "Where")
    values = [] if chosen is None else [number(value) for value in chosen.inputs[1:]]
    return len(values) == 2 and 0.0 in values and any(n is not None and drops(n) for n in values)


def _count(node: ir.Node, spec: AttentionSpec, known: dict[ir.Value, tuple[ir.Value, ...]]) -> None:
    """Give ``node`` the order and the number of its kept keys; layers with the same mask share them."""
    inputs = spec.named_inputs(node)
    mask = inputs["mask"]
    assert mask is not None
    if mask not in known:
        known[mask] = Builder.at(node, name=node.name or "").several("KeptKeys", KEPT, mask, domain=DOMAIN)
    inputs |= dict(zip(KEPT, known[mask], strict=True))
    take_place(replace(spec, kept_known=True).node(inputs, like=node), node)
