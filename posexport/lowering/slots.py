"""Attention over the whole capacity of a static KV cache without its unused slots: their scores and values never count.

Unused slots may hold NaN or infinities, which no added mask and no probability of zero takes out of a product. Scores
are few in a decode step, so the scores of unused slots are sliced off before the softmax. Values fill the capacity of
the cache: slicing would copy them. Zero times NaN or infinity is NaN, so a context without NaN is right; one with
NaN is computed again from a copy of the used values.
"""

from collections.abc import Callable

import onnx_ir as ir

from posexport.graph.builder import Builder

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
    return g.if_(
        g.IsNaN(g.ReduceSum(context, keepdims=0)),
        lambda: product(probs, g.slice(v, [0], used, -2)),
        lambda: context,
        branches=("without_unused_slots", "of_all_slots"),
        name="context_of_slots",
    )
