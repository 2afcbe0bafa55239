"""Attention by ONNX Runtime's MultiHeadAttention, with all that positions add as its ``attention_bias``."""

import onnx_ir as ir

from posexport.base.targets.target import MICROSOFT, Target
from posexport.graph.builder import Builder
from posexport.graph.lowering.aligned import aligned
from posexport.graph.lowering.attention import Attention, cache_refusal, operator_refusal
from posexport.graph.lowering.lowering import Inputs, Lowering, pack_heads
from posexport.graph.ops.attention import AttentionSpec


class MultiHead(Lowering[AttentionSpec]):
    """The operator, over whole matrices; on CUDA the way to its memory-efficient kernels."""

    name = "multi-head"
    accepts_packed_heads = True
    why_not_preferred = "on the CPU ai.onnx Attention is faster at short lengths, and blockwise at long ones"

    def refusal(self, spec: AttentionSpec, target: Target) -> str | None:
        """Not where attention is more than products, sums and a softmax, nor in grouped-query attention."""
        shares = "the operator takes keys and values for every head, and groups of heads share them here"
        return (
            cache_refusal(spec)
            or operator_refusal(spec)
            or (shares if spec.grouped else target.needs_microsoft("MultiHeadAttention"))
        )

    def build(self, g: Builder, spec: AttentionSpec, x: Inputs, target: Target) -> ir.Value:
        attention = Attention(g, spec, x, x["q"])
        if not attention.adds or target.bias_multiple == 1:
            return by_multi_head(attention, attention.bias())
        filled, bias = aligned(attention, queries=target.bias_multiple, keys=target.bias_multiple)
        return by_multi_head(filled, bias, queries=attention.queries())


def by_multi_head(attention: Attention, bias: ir.Value | None, queries: ir.Value | None = None) -> ir.Value:
    """The context by the operator, which takes packed queries whatever keys and values are, and returns it packed.

    ``queries``: how many of them count, int64 [1], if more follow.
    """
    g, spec, x = attention.g, attention.spec, attention.x
    q = x["q"] if spec.packed else pack_heads(g, x["q"])
    context = g.op(
        "MultiHeadAttention",
        q,
        x["k"],
        x["v"],
        None,
        None,
        bias,
        domain=MICROSOFT,
        num_heads=g.attribute("heads", int),
        scale=g.attribute("scale", float),
    )
    if queries is not None:
        context = g.slice(context, [0], queries, 1)
    if spec.packed:
        return context
    shape = g.shape(g.Shape(context, start=0, end=2), g.size(x["q"], 1), [-1])
    return g.Transpose(g.Reshape(context, shape), perm=[0, 2, 1, 3])
