"""Attention by ONNX Runtime's GroupQueryAttention, which writes to a static KV cache in place and reads it there.

Its padding (row by row, on the right) is not used: it is wrong for prompts that are padded on the left. What positions
and padding add to the scores is its ``attention_bias``. Of several rows it accepts several tokens only as a first
prompt; a later chunk of a prompt is computed by the formula, in another branch of the same graph.

Its rotation is used where causal order is all that drops keys, with no bias, and every token has its own row of the
tables (`posexport.ops.cache.RotatedCalls`): a prompt or a chunk of one row without padding. These calls are one node in
each layer, from queries, keys and values as one linear projection gives them. Steps without padding are products
(`posexport.lowering.single_token`).

On the CPU, `posexport.lowering.static` computes a decode step against a cache that is mostly used. On a device the
operator is fused where it gets no bias: whether causal order drops all that the mask does is decided once a call.
"""

from collections.abc import Callable
from dataclasses import replace

from posexport.graph.builder import Builder
from posexport.lowering.attention import Attention, operator_refusal
from posexport.lowering.filled_slots import Appended, appending_refusal, over_filled, with_types, written
from posexport.lowering.lowering import Inputs, Lowering, pack_heads
from posexport.lowering.rotated import rotated, rotation_refusal
from posexport.lowering.single_token import of_single_token
from posexport.lowering.static import step
from posexport.ops.attention import AttentionSpec
from posexport.targets.target import MICROSOFT, Target

#: the operator accepts heads of a multiple of this
_MULTIPLE = 8


class GroupQuery(Lowering[AttentionSpec]):
    """The operator, for causal attention to a static KV cache."""

    name = "group-query"
    accepts_packed_heads = True

    def refusal(self, spec: AttentionSpec, target: Target) -> str | None:
        """Not without a static KV cache, with scores of the keys in it, or heads of an odd size."""
        reason = appending_refusal(spec)
        if reason is not None:
            return reason
        if spec.head_size is not None and spec.head_size % _MULTIPLE:
            return f"the operator takes heads of a multiple of {_MULTIPLE}, these have {spec.head_size}"
        if not spec.causal or spec.mask != "keys":
            return "the operator is causal, and a mask over keys says which slots are used"
        if spec.cache == "grow" and not target.waits_to_branch:
            return "the operator holds all scores, of prompts of any length, where a cache grows"
        kernel = target.needs_kernel("GroupQueryAttention", MICROSOFT)
        reason = kernel or operator_refusal(spec) or target.needs_microsoft("GroupQueryAttention")
        return reason or (rotation_refusal(spec, target) if spec.rotation else None)

    def build(self, g: Builder, spec: AttentionSpec, x: Inputs, target: Target) -> Appended:
        attention = Attention(g, spec, x, x["past_k"])
        attention.scale()
        if not spec.rotation:
            return _appended(attention, target)
        return by_call(attention, target, lambda: _appended(rotated(attention), target))


def by_call(attention: Attention, target: Target, others: Callable[[], Appended]) -> Appended:
    """Steps without padding by products, other calls that the operator rotates by it, and ``others``."""
    g, spec, x = attention.g, attention.spec, attention.x

    def not_alone() -> Appended:
        return g.if_(
            x["rotates"],
            lambda: with_types(_by_rotating_operator(attention), target, [3, 4, 4]),
            others,
            branches=("rotating", "rotated_before"),
            name=[f"{name}_of_more" for name in spec.outputs],
        )

    return g.if_(
        x["alone"],
        lambda: with_types(of_single_token(rotated(attention)), target, [3, 4, 4]),
        not_alone,
        branches=("of_single_token", "of_more"),
        name=spec.outputs,
    )


def _appended(attention: Attention, target: Target) -> Appended:
    """The context and the cache, of rotated queries and keys."""
    g, spec, x = attention.g, attention.spec, attention.x
    # the operator is causal by itself
    acausal = replace(attention, spec=replace(spec, causal=False))
    axes = 3 if spec.packed else 4

    def of_others() -> Appended:
        return g.if_(
            x["takes"],
            lambda: with_types(_by_operator(acausal), target, [axes, 4, 4]),
            lambda: _by_formula(attention),
            branches=("by_operator", "by_formula"),
            name=["context_of_others", "k_of_others", "v_of_others"],
        )

    def by_order() -> Appended:
        return with_types(_by_operator(acausal, biased=False), target, [axes, 4, 4])

    def by_mask() -> Appended:
        return with_types(over_filled(attention, target), target, [axes, 4, 4])

    if target.waits_to_branch:
        if not spec.order_known:
            return by_mask()
        branches = ("by_order", "by_mask")
        return g.if_(x["order_suffices"], by_order, by_mask, branches=branches, name=spec.outputs)
    return g.if_(
        x["step"],
        lambda: with_types(step(acausal, acausal.bias), target, [axes]),
        of_others,
        branches=("of_step", "of_others"),
        name=spec.outputs,
    )


def _by_rotating_operator(attention: Attention) -> Appended:
    """By the operator alone, which rotates queries and keys and drops keys by causal order."""
    g, spec, x = attention.g, attention.spec, attention.x
    qkv = (x["qkv"], None, None) if spec.joined else (x["q"], x["k"], x["v"])
    return g.several(
        "GroupQueryAttention",
        ["context_of_rotating", "k_of_rotating", "v_of_rotating"],
        *(*qkv, x["past_k"], x["past_v"], x["last_keys"], x["key_total"]),
        *(x["cos_rows"], x["sin_rows"], x["token_rows"]),
        domain=MICROSOFT,
        num_heads=g.attribute("heads", int),
        kv_num_heads=g.attribute("kv_heads", int),
        scale=g.attribute("scale", float),
        do_rotary=1,
        rotary_interleaved=int(spec.rotation == "interleaved"),
    )


def _by_operator(attention: Attention, *, biased: bool = True) -> Appended:
    g, spec, x = attention.g, attention.spec, attention.x
    q, k, v = (x[name] if spec.packed else pack_heads(g, x[name]) for name in "qkv")
    context, k, v = g.several(
        "GroupQueryAttention",
        ["context_of_operator", "k_of_operator", "v_of_operator"],
        *(q, k, v, x["past_k"], x["past_v"], x["last_keys"], x["key_total"]),
        *(None, None, None, attention.bias() if biased else None),
        domain=MICROSOFT,
        num_heads=g.attribute("heads", int),
        kv_num_heads=g.attribute("kv_heads", int),
        scale=g.attribute("scale", float),
    )
    if not spec.packed:
        shape = g.shape([0, 0], g.Reshape(g.attribute("heads", int), [1]), [-1])
        context = g.Transpose(g.Reshape(context, shape), perm=[0, 2, 1, 3])
    return context, k, v


def _by_formula(attention: Attention) -> Appended:
    g, split = attention.g, attention.split()
    keys = g.Shape(split.x["kpos"])
    k, v = written(split)
    used = {name: g.slice(cache, [0], keys, 2) for name, cache in (("k", k), ("v", v))}
    context = split.over(**used).by_products()
    return (pack_heads(g, context) if attention.spec.packed else context), k, v
