"""Attention by ONNX Runtime's GroupQueryAttention, which writes to a static KV cache in place and reads it there.

Its own rotation and its own idea of padding (row by row, on the right) are not used: the first would need tables of
every position, the second is wrong for prompts that are padded on the left. What positions and padding add to the
scores is its ``attention_bias``. Of several rows it accepts several tokens only as a first prompt; a later chunk of a
prompt goes by the formula there, in the same graph.

A decode step against a cache that is mostly used goes by `posexport.lowering.step` on the CPU. On a device the operator
is fused where it gets no bias: whether causal order drops all that the mask does is decided once a call.
"""

from dataclasses import replace

import onnx_ir as ir

from posexport.graph.builder import Builder
from posexport.lowering.aligned import aligned
from posexport.lowering.attention import Attention, operator_refusal
from posexport.lowering.heads import pack_heads
from posexport.lowering.lowering import Inputs, Lowering
from posexport.lowering.multi_head import by_multi_head
from posexport.lowering.step import step
from posexport.ops.attention import AttentionSpec
from posexport.targets.target import MICROSOFT, Target

#: the operator accepts heads of a multiple of this
_MULTIPLE = 8

Appended = tuple[ir.Value, ...]


class GroupQuery(Lowering[AttentionSpec]):
    """The operator, for causal attention to a static KV cache."""

    name = "group-query"
    accepts_packed_heads = True

    def refusal(self, spec: AttentionSpec, target: Target) -> str | None:
        """Not without a static KV cache, with scores of the keys in it, or heads of an odd size."""
        if not spec.appends:
            return "it is for caches of fixed size that the attention writes to itself"
        if spec.score_operator is not None and "k" in spec.score_operator.takes:
            return f"{spec.scores} reads the keys, which only the operator would hold"
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

        def of_others() -> Appended:
            return g.if_(
                x["takes"],
                lambda: _with_types(_by_operator(acausal), target, [axes, 4, 4]),
                lambda: _by_formula(attention),
                branches=("by_operator", "by_formula"),
                name=["context_of_others", "k_of_others", "v_of_others"],
            )

        def by_order() -> Appended:
            return _with_types(_by_operator(acausal, biased=False), target, [axes, 4, 4])

        def by_mask() -> Appended:
            return _with_types(_over_filled(attention, target), target, [axes, 4, 4])

        if target.waits_to_branch:
            if not spec.order_known:
                return by_mask()
            branches = ("by_order", "by_mask")
            return g.if_(x["order_suffices"], by_order, by_mask, branches=branches, name=spec.outputs)
        return g.if_(
            x["step"],
            lambda: _with_types(step(acausal, acausal.bias), target, [axes]),
            of_others,
            branches=("of_step", "of_others"),
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


def _over_filled(attention: Attention, target: Target) -> Appended:
    """By an operator that a device computes fused with a bias, over copies of the used slots.

    Keys are filled up with the last used slot: the others may hold anything.
    """
    g, spec = attention.g, attention.spec
    split = attention.split()
    present = dict(zip("kv", _written(split), strict=True))

    def fill(name: str, used: ir.Value, missing: ir.Value) -> ir.Value:
        slots = g.Range(0, g.scalar(g.Add(used, missing)), 1)
        return g.Gather(present[name], g.Min(slots, g.Sub(used, [1])), axis=2, name=f"{name}_filled")

    multiple = target.bias_multiple
    if spec.grouped:
        filled, bias = aligned(split, queries=1, keys=multiple, fill=fill)
        context = filled.operator_with(bias)
        return (pack_heads(g, context) if spec.packed else context), *present.values()
    filled, bias = aligned(attention, queries=multiple, keys=multiple, fill=fill)
    return by_multi_head(filled, bias, queries=attention.queries()), *present.values()


def _written(split: Attention) -> tuple[ir.Value, ir.Value]:
    """The buffers of keys and values with the new tokens."""
    g, x = split.g, split.x
    if split.spec.cache == "grow":
        k, v = (g.Concat(x[f"past_{name}"], x[name], axis=2) for name in ("k", "v"))
    else:
        k, v = (g.TensorScatter(x[f"past_{name}"], x[name], x["write_at"], axis=2) for name in ("k", "v"))
    return k, v


def _by_formula(attention: Attention) -> Appended:
    g, split = attention.g, attention.split()
    keys = g.Shape(split.x["kpos"])
    k, v = _written(split)
    used = {name: g.slice(cache, [0], keys, 2) for name, cache in (("k", k), ("v", v))}
    context = split.over(**used).by_products()
    return (pack_heads(g, context) if attention.spec.packed else context), k, v


def _with_types(outputs: Appended, target: Target, axes: list[int]) -> Appended:
    """``outputs``, the first of them with types of so many axes, which nothing infers from ONNX Runtime's operators."""
    for value, rank in zip(outputs, axes, strict=False):
        value.type = ir.TensorType(ir.DataType[target.dtype.onnx])
        value.shape = ir.Shape([f"{value.name}_axis_{axis}" for axis in range(rank)])
    return outputs
