"""Attention that appends to a dynamic KV cache: steps by products, short prompts by GroupQueryAttention, long by tiles.

The operator holds the scores of all heads, gigabytes in a prefill of thousands of tokens.
"""

from dataclasses import replace

from posexport.graph.builder import Builder
from posexport.lowering.attention import Attention, operator_refusal
from posexport.lowering.filled_slots import Appended, appending_refusal, written
from posexport.lowering.group_query import by_call
from posexport.lowering.lowering import Inputs, Lowering, pack_heads
from posexport.lowering.rotated import rotated, rotation_refusal
from posexport.lowering.tiled import Tiled
from posexport.ops.attention import AttentionSpec
from posexport.targets.target import MICROSOFT, Target

_TILED = Tiled()


class Growing(Lowering[AttentionSpec]):
    """Steps and short prompts without padding as with a static cache; other calls as `Tiled`."""

    name = "growing"
    tiles_queries = True
    accepts_packed_heads = True

    def refusal(self, spec: AttentionSpec, target: Target) -> str | None:
        """Not where a device has fused attention, nor without a dynamic cache that the attention appends to."""
        if target.waits_to_branch:
            return "on a device one operator computes all calls"
        if spec.cache != "grow":
            return appending_refusal(spec) or "it is for caches that grow"
        if not spec.causal or spec.mask != "keys":
            return "the operator is causal, and a mask over keys says which are padding"
        operator = target.needs_kernel("GroupQueryAttention", MICROSOFT) or target.needs_microsoft(
            "GroupQueryAttention"
        )
        reason = operator or operator_refusal(spec) or _TILED.refusal(replace(spec, cache="none"), target)
        return reason or (rotation_refusal(spec, target) if spec.rotation else None)

    def build(self, g: Builder, spec: AttentionSpec, x: Inputs, target: Target) -> Appended:
        attention = Attention(g, spec, x, x["past_k"])
        if not spec.rotation:
            return _by_tiles(attention, target)
        return by_call(attention, target, lambda: _by_tiles(rotated(attention), target))


def _by_tiles(attention: Attention, target: Target) -> Appended:
    split = attention.split()
    k, v = written(split)
    context = _TILED.build(attention.g, replace(split.spec, cache="none"), {**split.x, "k": k, "v": v}, target)
    return (pack_heads(attention.g, context) if attention.spec.packed else context), k, v
