"""Attention by ONNX Runtime's MultiHeadAttention, with all that positions add as its ``attention_bias``."""

from collections.abc import Mapping

from posexport.lowering.heads import side_by_side
from posexport.lowering.scores import SCALE, cache_refusal, operator_refusal, read_apart, scaled_keys, summands
from posexport.ops.attention import AttentionKind
from posexport.targets.target import MICROSOFT, Target


class MultiHead:
    """The operator, over whole matrices; on CUDA the way to its memory-efficient kernels."""

    name = "multi-head"
    cuts = False
    joins = True
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
        """The statements, in the ONNX text format. Queries are always taken without an axis of heads."""
        del target
        sums, bias = summands(kind)
        q, gives = ("q", "context") if kind.joined else ("q_joined", "joined")
        given = ", ".join([q, "k", "v", *([] if bias is None else ["", "", bias])])
        found = [
            *SCALE,
            *read_apart(kind),
            *scaled_keys(kind),
            *sums,
            *([] if kind.joined else side_by_side("q", q)),
            f"{gives} = {MICROSOFT}.MultiHeadAttention<num_heads: int = @heads, scale: float = @scale>({given})",
        ]
        if not kind.joined:
            found += [
                "lead = Shape<start = 0, end = 2>(joined)",
                "heads = Shape<start = 1, end = 2>(q)",
                "rest = Constant<value_ints = [-1]>()",
                "context_shape = Concat<axis = 0>(lead, heads, rest)",
                "context_first = Reshape(joined, context_shape)",
                "context = Transpose<perm = [0, 2, 1, 3]>(context_first)",
            ]
        return "\n".join(found)
