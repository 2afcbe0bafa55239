"""Attention to the used slots of a static KV cache, without position terms.

Unused slots may hold NaN or infinities, which no added mask and no probability of zero takes out of a product. Scores
are few in a decode step, so the scores of unused slots are sliced off before the softmax. Values fill the capacity of
the cache: slicing would copy them. Zero times NaN or infinity is NaN, so a context without NaN is right; one with
NaN is computed again from a copy of the used values.

GroupQueryAttention spends several times as long on these products as reading keys and values takes. Here every head has
a separate product of a single row, for which ONNX Runtime has a kernel; with the scale as the product's factor it
would take longer. Where `_STACKED` or more heads share keys, their rows are one matrix: with 8 heads of 128 channels a
step with 2048 tokens in the cache takes 0.9 of the time (onnxruntime 1.31, AVX-512); the products of 2 would take 1.4.
What unused slots hold never matters (`posexport.lowering.static`).

Copying these slots out of the cache costs a decode step more than its arithmetic: where at least half of the capacity
is used, a call of few tokens attends to the whole capacity and drops the unused slots' scores and values; all other
calls copy the used slots, so that a step costs the used slots, not the capacity.
"""

from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from posexport.graph.builder import Builder
from posexport.lowering.attention import Attention
from posexport.lowering.lowering import Inputs, Lowering
from posexport.ops.attention import AttentionSpec
from posexport.targets.target import MICROSOFT, Target

#: from probabilities and values to their product
Product = Callable[[ir.Value, ir.Value], ir.Value]

#: heads that share keys and are multiplied by them as one matrix
_STACKED = 4


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


@dataclass(frozen=True)
class Shapes:
    """Shapes of queries and keys of one token, by the numbers of heads.

    Attributes:
        heads: how many heads queries have, int64 [1].
        of_kv_heads: keys or values as [B, KV heads, 1, D].
        of_each: queries as [B, KV heads, products, rows of each, D].
    """

    heads: ir.Value
    of_kv_heads: ir.Value
    of_each: ir.Value

    @staticmethod
    def of(g: Builder) -> "Shapes":
        heads, kv_heads = (g.Reshape(g.attribute(name, int), [1]) for name in ("heads", "kv_heads"))
        of_kv_heads = g.shape([0], kv_heads, [1], [-1])
        shared = g.Div(heads, kv_heads)
        products = g.Where(g.Less(shared, [_STACKED]), shared, [1])
        return Shapes(heads, of_kv_heads, g.shape([0], kv_heads, products, g.Div(shared, products), [-1]))


def step(attention: Attention, bias: Callable[[], ir.Value | None]) -> tuple[ir.Value, ir.Value, ir.Value]:
    """The context and the buffers of keys and values, of attention that appends a single token to its cache.

    ``bias`` writes the bias of the scores, [B or 1, H or 1, 1, S]; None where that is the mask alone.
    """
    g, spec, x = attention.g, attention.spec, attention.x
    shapes = Shapes.of(g)
    heads, of_kv_heads, of_each = shapes.heads, shapes.of_kv_heads, shapes.of_each
    k, v = (
        g.TensorScatter(x[f"past_{name}"], g.Reshape(x[name], of_kv_heads), x["write_at"], axis=2)
        for name in ("k", "v")
    )
    q_each = g.Reshape(attention.scaled(x["q"]), of_each)
    scores = g.op("FusedMatMul", q_each, g.Unsqueeze(k, [2]), domain=MICROSOFT, transB=1)
    used = g.Shape(x["kpos"])
    scores = used_scores(g, scores, used)
    if spec.scores is None:
        probs = g.Softmax(g.Add(scores, g.Unsqueeze(x["mask"], [1])), axis=-1)
    else:
        scores_of_heads = g.Reshape(scores, g.shape([0], heads, [1], [-1]))
        probs = g.Reshape(g.Softmax(g.Add(scores_of_heads, bias()), axis=-1), of_each)
    context = used_context(
        g, probs, g.Unsqueeze(v, [2]), used=used, unused=x["unused"], axes=5, product=lambda p, v: g.MatMul(p, v)
    )
    packed = g.shape([0], [1], [-1]) if spec.packed else g.shape([0], heads, [1], [-1])
    return g.Reshape(context, packed), k, v


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
