"""Attention of one new token to a cache of fixed size that is mostly taken: products of all places, free ones masked.

GroupQueryAttention spends several times as long on these products as reading keys and values takes. Here every head has
a product of its own, of a single row, for which ONNX Runtime has a kernel; with the scale as the product's own factor
it would take longer. Free places count nothing but have to hold finite numbers.
"""

from posexport.lowering.target import MICROSOFT
from posexport.ops.attention import AttentionKind


def step(kind: AttentionKind, given: list[str], bias: str | None) -> list[str]:
    """Statements that give ``context_of_step``, and the buffers ``k_after_step`` and ``v_after_step``.

    In scope: a cached kind's inputs, and ``s``, the scale. ``given``: statements that give the value called ``bias``,
    [B or 1, H or 1, 1, S], which is added to the scores. (Of padding alone `posexport.ops.cached_calls` has it for all
    places.)
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
        f"score_each = {MICROSOFT}.FusedMatMul<transB = 1>(q_each, k_each)",
    ]
    if kind.scores is None:
        found += ["summed_each = Add(score_each, mask_of_places)", "probs_each = Softmax<axis = -1>(summed_each)"]
    else:
        found += [
            *given,
            "before_free = Constant<value_ints = [0, 0, 0, 0, 0, 0, 0]>()",
            "of_free = Concat<axis = 0>(before_free, free)",
            "free_score1 = Constant<value_float: float = @lowest>()",
            "free_score = CastLike(free_score1, q)",
            f"bias_of_places = Pad({bias}, of_free, free_score)",
            "score_of_heads = Reshape(score_each, of_heads)",
            "summed = Add(score_of_heads, bias_of_places)",
            "probs = Softmax<axis = -1>(summed)",
            "probs_each = Reshape(probs, of_each)",
        ]
    heads = "" if kind.joined else "head_count, "
    return [
        *found,
        "context_each = MatMul(probs_each, v_each)",
        f"of_context = Concat<axis = 0>(same, {heads}single, others)",
        "context_of_step = Reshape(context_each, of_context)",
    ]
