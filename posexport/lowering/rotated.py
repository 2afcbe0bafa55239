"""Attention that rotates its queries and keys: where GroupQueryAttention does it, and how other calls do."""

from dataclasses import replace

from posexport.lowering.attention import Attention
from posexport.ops.attention import AttentionSpec
from posexport.targets.dtypes import MODEL_DTYPE
from posexport.targets.target import ATTENTION_OPSET, Target

#: GroupQueryAttention rotates heads of a multiple of this
_MULTIPLE = 16


def rotation_refusal(spec: AttentionSpec, target: Target) -> str | None:
    """Why GroupQueryAttention does not rotate queries and keys; None where it does."""
    if target.dtype is not MODEL_DTYPE:
        return f"the operator would rotate by cosines in {target.dtype.name}, and positions stay {MODEL_DTYPE.name}"
    if spec.scores is not None:
        return "it is for calls in which causal order is all that positions do to scores"
    if not spec.packed:
        return "queries, keys and values are not the packed heads of linear projections"
    if spec.head_size is None or spec.head_size % _MULTIPLE:
        return f"the operator rotates heads of a multiple of {_MULTIPLE}, these have {spec.head_size}"
    return target.needs(ATTENTION_OPSET, "ai.onnx RotaryEmbedding")


def rotated(attention: Attention) -> Attention:
    """The same attention over rotated queries and keys."""
    g, spec, x = attention.g, attention.spec, attention.x
    q, k, v = (
        g.several("Split", ["q", "k", "v"], x["qkv"], g.attribute("joined_parts", list), axis=-1)
        if spec.joined
        else (x["q"], x["k"], x["v"])
    )

    q_turned, k_turned = (
        g.RotaryEmbedding(
            value,
            x["cos_of_tokens"],
            x["sin_of_tokens"],
            interleaved=int(spec.rotation == "interleaved"),
            num_heads=g.attribute(heads, int),
            rotary_embedding_dim=g.attribute("rotary_dim", int),
        )
        for value, heads in ((q, "heads"), (k, "kv_heads"))
    )
    return replace(
        attention,
        spec=replace(spec, rotation="", joined=False),
        x={**x, "q": q_turned, "k": k_turned, "v": v},
    )
