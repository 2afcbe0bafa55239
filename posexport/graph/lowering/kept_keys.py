"""Attention by ai.onnx Attention (opset 24), the kept keys first and their number instead of a mask.

A device then needs no bias: ONNX Runtime has flash attention for CUDA in half precision, memory-efficient attention in
float32, of any length and without a branch. Keys and values are copied once, in that order.
"""

import onnx_ir as ir

from posexport.base.targets.target import KEPT_KEYS_OPSET, Target
from posexport.graph.builder import Builder
from posexport.graph.lowering.lowering import Inputs, Lowering
from posexport.graph.ops.attention import AttentionSpec


class KeptKeys(Lowering[AttentionSpec]):
    """For attention that the pass of this name changed: between packed heads, with a mask over keys alone."""

    name = "kept-keys"
    accepts_packed_heads = True
    why_not_preferred = "its copies of keys and values pay where attention without a bias is another kernel"

    def refusal(self, spec: AttentionSpec, target: Target) -> str | None:
        """Where the inputs that it needs are not there."""
        if not spec.kept_known:
            return "it is for a device, and for masks over keys alone, between linear projections"
        return target.no_attention or target.needs(KEPT_KEYS_OPSET, "ai.onnx Attention with a number of keys")

    def build(self, g: Builder, spec: AttentionSpec, x: Inputs, target: Target) -> ir.Value:
        def in_order(name: str) -> ir.Value:
            """[B, S, H D], by operators that the last axis is inferred for: else Attention's would be unknown."""
            return g.Gather(g.Flatten(x[name], axis=2), x["key_order"], axis=0, name=f"{name}_kept_first")

        return g.Attention(
            x["q"],
            in_order("k"),
            in_order("v"),
            None,
            None,
            None,
            x["key_counts"],
            q_num_heads=g.attribute("heads", int),
            kv_num_heads=g.attribute("kv_heads", int),
            scale=g.attribute("scale", float),
            name="output",
        )
