"""Attention that appends to a static KV cache and reads copies of the used slots, for a device.

Copies are filled up, so that attention with a bias is fused (`posexport.graph.lowering.aligned`), and the bias drops
what the mask does. There is no branch, so that a call can be captured as a CUDA graph whatever its rows' padding, and
nothing is copied from the device to the host.
"""

import onnx_ir as ir

from posexport.base.targets.target import Target
from posexport.graph.builder import Builder
from posexport.graph.lowering.aligned import aligned
from posexport.graph.lowering.attention import Attention, operator_refusal
from posexport.graph.lowering.lowering import Inputs, Lowering, pack_heads
from posexport.graph.lowering.multi_head import by_multi_head
from posexport.graph.ops.attention import AttentionSpec

#: the context, and the buffers of keys and values
Appended = tuple[ir.Value, ...]


class FilledSlots(Lowering[AttentionSpec]):
    """MultiHeadAttention, or for groups of heads ai.onnx Attention, over copies of the used slots."""

    name = "filled-slots"
    accepts_packed_heads = True
    why_not_preferred = "it copies keys and values, to have no branch, which pays in calls captured as CUDA graphs"

    def refusal(self, spec: AttentionSpec, target: Target) -> str | None:
        """Not on the CPU, without a static KV cache, or with scores of the keys in it."""
        if not target.waits_to_branch:
            return "its copies pay on a device"
        if spec.cache == "grow":
            return "it is for caches of fixed size"
        if not spec.causal or spec.mask != "keys":
            return "a mask over keys says which slots are used"
        grouped = target.no_attention if spec.grouped else None
        refused = appending_refusal(spec) or operator_refusal(spec) or grouped
        return refused or target.needs_microsoft("MultiHeadAttention")

    def build(self, g: Builder, spec: AttentionSpec, x: Inputs, target: Target) -> Appended:
        attention = Attention(g, spec, x, x["q"])
        return with_types(over_filled(attention, target), target, [3 if spec.packed else 4, 4, 4])


def appending_refusal(spec: AttentionSpec) -> str | None:
    """Why attention does not append to a cache; None where it does."""
    if not spec.appends:
        return "it is for caches of fixed size that the attention writes to itself"
    if spec.score_operator is not None and "k" in spec.score_operator.takes:
        return f"{spec.scores} reads the keys, which only the operator would hold"
    return None


def over_filled(attention: Attention, target: Target) -> Appended:
    """By an operator that a device computes fused with a bias, over copies of the used slots.

    Keys are filled up with the last used slot: the others may hold anything.
    """
    g, spec = attention.g, attention.spec
    split = attention.split()
    present = dict(zip("kv", written(split), strict=True))

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


def written(split: Attention) -> tuple[ir.Value, ir.Value]:
    """The buffers of keys and values with the new tokens."""
    g, x = split.g, split.x
    if split.spec.cache == "grow":
        k, v = (g.Concat(x[f"past_{name}"], x[name], axis=2) for name in ("k", "v"))
    else:
        k, v = (g.TensorScatter(x[f"past_{name}"], x[name], x["write_at"], axis=2) for name in ("k", "v"))
    return k, v


def with_types(outputs: Appended, target: Target, axes: list[int]) -> Appended:
    """``outputs``, with the rank of the first of them, which nothing infers from ONNX Runtime's operators."""
    for value, rank in zip(outputs, axes, strict=False):
        value.type = ir.TensorType(ir.DataType[target.dtype.onnx])
        value.shape = ir.Shape([f"{value.name}_axis_{axis}" for axis in range(rank)])
    return outputs
