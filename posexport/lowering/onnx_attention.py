"""Attention by one operator of ONNX, ai.onnx Attention (opset 23), with all that positions add as its mask."""

from collections.abc import Mapping

from posexport.lowering.scores import SCALE, by_operator, cache_refusal, operator_refusal, read_apart, scaled_keys
from posexport.ops.attention import AttentionKind
from posexport.targets.target import ATTENTION_OPSET, Target


class OnnxAttention:
    """The operator, over whole matrices: ONNX Runtime holds the scores of all pairs, and what is added to them."""

    name = "attention"
    cuts = False
    joins = True
    beaten = "it holds the scores of all pairs at once, which blockwise does only where they are few"

    def domains(self, kind: AttentionKind, target: Target) -> Mapping[str, int]:
        """Standard operators only."""
        del kind, target
        return {}

    def refusal(self, kind: AttentionKind, target: Target) -> str | None:
        """Not where attention is more than products, sums and a softmax, and not before opset 23."""
        return cache_refusal(kind) or operator_refusal(kind) or target.needs(ATTENTION_OPSET, "ai.onnx Attention")

    def body(self, kind: AttentionKind, target: Target) -> str:
        """The statements, in the ONNX text format."""
        del target
        return "\n".join([*SCALE, *read_apart(kind), *scaled_keys(kind), *by_operator(kind, "context")])
