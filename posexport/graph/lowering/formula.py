"""Attention by the formula: the scores of all pairs.

Memory grows with heads times the square of the length. The body a reader checks the others against.
"""

import onnx_ir as ir

from posexport.base.targets.target import Target
from posexport.graph.builder import Builder
from posexport.graph.lowering.attention import Attention, cache_refusal
from posexport.graph.lowering.lowering import Inputs, Lowering
from posexport.graph.ops.attention import AttentionSpec


class Formula(Lowering[AttentionSpec]):
    """``softmax(scale * (q k^T + scores) + mask) v + values``, over whole matrices."""

    name = "formula"
    why_not_preferred = "it holds the scores of all pairs at once"

    def refusal(self, spec: AttentionSpec, target: Target) -> str | None:
        """Not for static KV caches; applies to everything else."""
        return cache_refusal(spec)

    def build(self, g: Builder, spec: AttentionSpec, x: Inputs, target: Target) -> ir.Value:
        return Attention(g, spec, x, x["q"]).by_products()
