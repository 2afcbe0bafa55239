"""Decode step against a static KV cache that is mostly used: batched MatMul over the whole capacity.

GroupQueryAttention spends several times as long on these products as reading keys and values takes. Here every head has
a product of its own, of a single row, for which ONNX Runtime has a kernel; with the scale as the product's own factor
it would take longer. What unused slots hold never matters (`posexport.lowering.slots`).
"""

from posexport.lowering.slots import used_context, used_scores
from posexport.ops.attention import AttentionKind
from posexport.targets.target import MICROSOFT


def step(kind: AttentionKind, given: list[str], bias: str | None) -> list[str]:
    """Statements that give ``context_of_step``, and the buffers ``k_after_step`` and ``v_after_step``.

    In scope: a cached kind's inputs, and ``s``, the scale. ``given``: statements that give the value called ``bias``,
    [B or 1, H or 1, 1, S], which is added to the scores. (Where that is the mask alone, nothing is computed.)
    """
    found = [
        "same = Constant<value_ints = [0]>()",
        "single = Constant<value_ints = [1]>()",
        "group_axis = Constant<value_ints = [2]>()",
        "others = Constant<value_ints = [-1]>()",
        "head_count0 = Constant<value_int: int = @heads>()",
        "head_count = Reshape(head_count0, single)",
        "group_count0 = Constant<value_int: int = @groups>()",
        "group_count = Reshape(group_count0, single)",
        "heads_each = Div(head_count, group_count)",
        "of_group = Concat<axis = 0>(same, group_count, single, others)",
        "of_each = Concat<axis = 0>(same, group_count, heads_each, single, others)",
        "of_heads = Concat<axis = 0>(same, head_count, single, others)",
        "k_new = Reshape(k, of_group)",
        "v_new = Reshape(v, of_group)",
        "k_after_step = TensorScatter<axis = 2>(past_k, k_new, write_at)",
        "v_after_step = TensorScatter<axis = 2>(past_v, v_new, write_at)",
        "k_each = Unsqueeze(k_after_step, group_axis)",
        "v_each = Unsqueeze(v_after_step, group_axis)",
        "q_scaled = Mul(q, s)",
        "q_each = Reshape(q_scaled, of_each)",
        f"score_of_slots = {MICROSOFT}.FusedMatMul<transB = 1>(q_each, k_each)",
        "used = Shape(kpos)",
        *used_scores("score_each", "score_of_slots", "used"),
    ]
    if kind.scores is None:
        found += [
            "mask_each = Unsqueeze(mask, single)",
            "summed_each = Add(score_each, mask_each)",
            "probs_each = Softmax<axis = -1>(summed_each)",
        ]
    else:
        found += [
            *given,
            "score_of_heads = Reshape(score_each, of_heads)",
            f"summed = Add(score_of_heads, {bias})",
            "probs = Softmax<axis = -1>(summed)",
            "probs_each = Reshape(probs, of_each)",
        ]
    context = used_context(
        "context_each",
        probs="probs_each",
        v="v_each",
        used="used",
        unused="unused",
        axes=5,
        product=lambda to, probs, v: [f"{to} = MatMul({probs}, {v})"],
    )
    heads = "" if kind.joined else "head_count, "
    return [
        *found,
        *context,
        f"of_context = Concat<axis = 0>(same, {heads}single, others)",
        "context_of_step = Reshape(context_each, of_context)",
    ]
