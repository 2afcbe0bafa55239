"""Attention by ONNX Runtime's GroupQueryAttention, which writes to a static KV cache in place and reads it there.

Its rotation and its padding (row by row, on the right) are not used: the first would need tables of
every position, the second is wrong for prompts that are padded on the left. What positions and padding add to the
scores is its ``attention_bias``. Of several rows it accepts several tokens only as a first prompt; a later chunk of a
prompt is computed by the formula, in another branch of the same graph.

On a device the operator is fused where it gets no bias: whether causal order drops all that the mask does is decided
once a call.
"""

from dataclasses import replace
from functools import partial

from posexport.base.targets.target import MICROSOFT, Target
from posexport.graph.builder import Builder
from posexport.graph.lowering.attention import Attention, operator_refusal
from posexport.graph.lowering.filled_slots import Appended, appending_refusal, over_filled, with_types, written
from posexport.graph.lowering.lowering import Inputs, Lowering, pack_heads
from posexport.graph.ops.attention import AttentionSpec

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
        kernel = target.needs_kernel("GroupQueryAttention", MICROSOFT)
        return kernel or operator_refusal(spec) or target.needs_microsoft("GroupQueryAttention")

    def build(self, g: Builder, spec: AttentionSpec, x: Inputs, target: Target) -> Appended:
        attention = Attention(g, spec, x, x["q"])
        attention.scale()
        # the operator is causal by itself
        acausal = replace(attention, spec=replace(spec, causal=False))
        axes = 3 if spec.packed else 4

        def by_operator(*, biased: bool = True) -> Appended:
            return with_types(_by_operator(acausal, biased=biased), target, [axes, 4, 4])

        def by_mask() -> Appended:
            return with_types(over_filled(attention, target), target, [axes, 4, 4])

        if target.waits_to_branch:
            if not spec.order_known:
                return by_mask()
            branches = ("by_order", "by_mask")
            return g.if_(
                x["order_suffices"], partial(by_operator, biased=False), by_mask, branches=branches, name=spec.outputs
            )

        if spec.single:
            return by_operator()
        return g.if_(
            x["takes"],
            by_operator,
            lambda: _by_formula(attention),
            branches=("by_operator", "by_formula"),
            name=spec.outputs,
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
