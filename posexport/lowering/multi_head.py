"""Attention by ONNX Runtime's MultiHeadAttention, with all that positions add as its ``attention_bias``."""

from collections.abc import Mapping

from posexport.lowering.scores import SCALE, additive, cache_refusal, operator_refusal, scaled_keys
from posexport.lowering.target import MICROSOFT, Target
from posexport.ops.attention import AttentionKind


class MultiHead:
    """The operator, over whole matrices; on CUDA the way to its memory-efficient kernels."""

    name = "multi-head"
    scans = False
    beaten = "on the CPU ai.onnx Attention is faster at short lengths, and blockwise at long ones"

    def domains(self, kind: AttentionKind, target: Target) -> Mapping[str, int]:
        """ONNX Runtime's own."""
        del kind, target
        return {MICROSOFT: 1}

    def refusal(self, kind: AttentionKind, target: Target) -> str | None:
        """Not where attention is more than products, sums and a softmax, nor where heads share keys."""
        shares = "the operator takes keys and values for every head, and groups of heads share them here"
        return (
            cache_refusal(kind)
            or operator_refusal(kind)
            or (shares if kind.grouped else target.needs_microsoft("MultiHeadAttention"))
        )

    def body(self, kind: AttentionKind, target: Target) -> str:
        """The statements, in the ONNX text format. Queries are taken without an axis of heads."""
        del target
        scaled = kind.scores is not None and not kind.biased and kind.scores.takes
        sums, bias = additive(kind, q="q", qs="qs", qpos="qpos")
        given = ", ".join(["q_joined", "k", "v", *([] if bias is None else ["", "", bias])])
        lines = [
            *SCALE,
            *scaled_keys(kind),
            *(["qs = Mul(q, s)"] if scaled else []),
            *sums,
            "q_first = Transpose<perm = [0, 2, 1, 3]>(q)",
            "q_lead = Shape<start = 0, end = 2>(q_first)",
            "rest = Constant<value_ints = [-1]>()",
            "q_shape = Concat<axis = 0>(q_lead, rest)",
            "q_joined = Reshape(q_first, q_shape)",
            f"joined = {MICROSOFT}.MultiHeadAttention<num_heads: int = @heads, scale: float = @scale>({given})",
            "heads = Shape<start = 1, end = 2>(q)",
            "context_shape = Concat<axis = 0>(q_lead, heads, rest)",
            "context_first = Reshape(joined, context_shape)",
            "context = Transpose<perm = [0, 2, 1, 3]>(context_first)",
        ]
        return "\n".join(lines)
