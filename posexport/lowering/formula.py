"""Attention as the formula has it: all scores at once.

Memory grows with heads times the square of the length. The body a reader checks the others against.
"""

from posexport.lowering.base import add_scores, base_scores, call, drop, multiplied, transposed_keys
from posexport.ops.attention import AttentionKind


class Formula:
    """``softmax(scale * (q k^T + scores) + mask) v + values``, over whole matrices."""

    name = "formula"
    scans = False

    def refusal(self, kind: AttentionKind) -> str | None:
        """Applies to every kind."""
        del kind
        return None

    def body(self, kind: AttentionKind) -> str:
        """The statements, in the ONNX text format."""
        lines = [
            "s1 = Constant<value_float: float = @scale>()",
            "s = CastLike(s1, q)",
            "qs = Mul(q, s)",
            "ks = Mul(k, s)",
            *transposed_keys(kind, "k"),
            *base_scores(kind, q="q", qs="qs", qpos="qpos"),
        ]
        added, score = add_scores(kind, "score", q="q", qs="qs", qpos="qpos")
        dropped, score = drop(kind, score, qpos="qpos")
        lines += [*added, *dropped, f"probs = Softmax<axis = -1>({score})"]
        if kind.values is None:
            lines += multiplied(kind, "context", "probs", "v")
        else:
            lines += [
                *multiplied(kind, "plain", "probs", "v"),
                f"extra = {call(kind, 'values')}",
                "context = Add(plain, extra)",
            ]
        return "\n".join(lines)
