"""Attention by one operator of ONNX, ai.onnx Attention (opset 23), with all that positions add as its mask."""

import onnx_ir as ir

from posexport.base.targets.target import Target
from posexport.graph.builder import Builder
from posexport.graph.lowering.aligned import aligned
from posexport.graph.lowering.attention import Attention, cache_refusal, operator_refusal
from posexport.graph.lowering.lowering import Inputs, Lowering
from posexport.graph.ops.attention import AttentionSpec


class OnnxAttention(Lowering[AttentionSpec]):
    """The operator, over whole matrices: ONNX Runtime holds the scores of all pairs, and their bias."""

    name = "attention"
    accepts_packed_heads = True
    why_not_preferred = "it holds the scores of all pairs at once, which blockwise does only where they are few"

    def refusal(self, spec: AttentionSpec, target: Target) -> str | None:
        """Not where attention is more than products, sums and a softmax, and at opsets 23 and 24 alone."""
        return cache_refusal(spec) or operator_refusal(spec) or target.no_attention

    def build(self, g: Builder, spec: AttentionSpec, x: Inputs, target: Target) -> ir.Value:
        attention = Attention(g, spec, x, x["q"])
        if not attention.adds or target.bias_multiple == 1:
            return attention.by_operator()

        def fill(name: str, _: ir.Value, missing: ir.Value) -> ir.Value:
            """[B, S', H D] by operators that the last axis is inferred for: Pad's is unknown, and Attention's 0."""
            shape = g.shape(g.size(x[name], 0), missing, g.size(x[name], -1))
            return g.Concat(x[name], g.Expand(g.CastLike(0.0, x[name]), shape), axis=1, name=f"{name}_filled")

        filled, bias = aligned(attention, queries=1, keys=target.bias_multiple, fill=fill if spec.packed else None)
        return filled.operator_with(bias)
