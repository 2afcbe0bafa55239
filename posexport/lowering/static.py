"""Attention to the used slots of a static KV cache, without position terms.

Copying these slots out of the cache costs a decode step more than its arithmetic: where at least half of the capacity
is used, a call of few tokens attends to the whole capacity and drops the unused slots' scores and values; all other
calls copy the used slots, so that a step costs the used slots, not the capacity.
"""

import onnx_ir as ir

from posexport.graph.builder import Builder
from posexport.lowering.attention import Attention
from posexport.lowering.lowering import Inputs, Lowering
from posexport.lowering.slots import used_context, used_scores
from posexport.ops.attention import AttentionSpec
from posexport.targets.target import Target

#: more new tokens than these have more scores to copy than there are keys and values
_FEW_TOKENS = 16


class Static(Lowering[AttentionSpec]):
    """The formula, over copies of the used slots or over the whole capacity."""

    name = "static"

    def refusal(self, spec: AttentionSpec, target: Target) -> str | None:
        return None if spec.cache == "static" else "keys and values are in no static KV cache"

    def build(self, g: Builder, spec: AttentionSpec, x: Inputs, target: Target) -> ir.Value:
        attention = Attention(g, spec, x, x["q"])
        used, capacity = g.Shape(x["kpos"], name="used"), g.size(x["k"], 2)
        unused = g.Sub(capacity, used, name="unused")
        copies = g.Or(g.Less(used, unused), g.Less([_FEW_TOKENS], g.Shape(x["qpos"])))

        def copied(name: str) -> ir.Value:
            return g.slice(x[name], [0], used, 2, name=f"{name}_used")

        def of_capacity() -> ir.Value:
            scores = used_scores(g, attention.raw_scores(), used)
            probs = attention.probabilities(attention.biased(scores))
            if (
                target.waits_to_branch
            ):  # copies are quick there, and the host would wait for whether the context holds NaN
                return attention.product(probs, copied("v"))
            product = attention.product
            return used_context(g, probs, x["v"], used=used, unused=unused, axes=4, product=product)

        return g.if_(
            g.scalar(copies),
            lambda: attention.over(k=copied("k"), v=copied("v")).by_products(),
            of_capacity,
            branches=("of_copies", "of_capacity"),
            name="context",
        )
