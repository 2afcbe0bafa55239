"""Attention to the used slots of a static KV cache, without position terms.

Unused slots may hold NaN or infinities, which no added mask and no probability of zero takes out of a product. Copying
the used slots costs a decode step more than its arithmetic, so its products are over the capacity of the cache, and
the scores of unused slots get minus infinity. Any NaN or infinity among them makes the context NaN: minus infinity plus
infinity, and zero times infinity, are NaN. So a context without NaN is right; one with NaN is computed again from the
used slots alone.

Where at least half of the capacity is used, a call of few tokens attends to the whole capacity; all other calls copy
the used slots, so that a step costs the used slots, not the capacity.
"""

from collections.abc import Callable

import onnx_ir as ir

from posexport.base.targets.target import Target
from posexport.graph.builder import Builder
from posexport.graph.lowering.attention import Attention
from posexport.graph.lowering.lowering import Inputs, Lowering
from posexport.graph.ops.attention import AttentionSpec

#: from probabilities and values to their product
Product = Callable[[ir.Value, ir.Value], ir.Value]


def used_scores(g: Builder, scores: ir.Value, used: ir.Value) -> ir.Value:
    """The scores of the first ``used`` (int64 [1]) slots of the capacity."""
    return g.slice(scores, [0], used, -1, name="used_scores")


def used_context(
    g: Builder, probs: ir.Value, v: ir.Value, *, used: ir.Value, unused: ir.Value, axes: int, product: Product
) -> ir.Value:
    """[..., T, V], from ``probs [..., T, S]`` and the first S slots of ``v [..., C, V]``.

    ``used``, ``unused``: S and C - S, int64 [1]. ``axes``: the rank of both.
    """
    pads = g.shape([0] * (2 * axes - 1), unused)
    context = product(g.Pad(probs, pads), v)
    return without_nan(g, context, lambda: product(probs, g.slice(v, [0], used, -2)), lambda: context)


def without_nan(
    g: Builder, context: ir.Value, of_used: Callable[[], ir.Value], of_all: Callable[[], ir.Value]
) -> ir.Value:
    """``of_all``, or ``of_used`` where ``context``, of all slots, has NaN."""
    return g.if_(
        g.IsNaN(g.ReduceSum(context, keepdims=0)),
        of_used,
        of_all,
        branches=("without_unused_slots", "of_all_slots"),
        name="context_of_slots",
    )


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
