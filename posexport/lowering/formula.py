"""Attention as the formula has it: all scores at once.

Memory grows with heads times the square of the length. The body a reader checks the others against.
"""

from collections.abc import Mapping

from posexport.lowering.scores import SCALE, by_products, cache_refusal, prepared_keys
from posexport.ops.attention import AttentionKind
from posexport.targets.target import Target


class Formula:
    """``softmax(scale * (q k^T + scores) + mask) v + values``, over whole matrices."""

    name = "formula"
    cuts = False
    joins = False
    beaten = "it holds the scores of all pairs at once"

    def domains(self, kind: AttentionKind, target: Target) -> Mapping[str, int]:
        """Standard operators only."""
        del kind, target
        return {}

    def refusal(self, kind: AttentionKind, target: Target) -> str | None:
        """Not where some keys do not count; applies to every other kind."""
        del target
        return cache_refusal(kind)

    def body(self, kind: AttentionKind, target: Target) -> str:
        """The statements, in the ONNX text format."""
        del target
        return "\n".join([*SCALE, *prepared_keys(kind), *by_products(kind, "context")])
