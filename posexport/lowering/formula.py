"""Attention as the formula has it: all scores at once.

Memory grows with heads times the square of the length. The body a reader checks the others against.
"""

from posexport.lowering.base import add_scores, base_scores, call, drop, multiplied, prepared_keys, probabilities
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
        return "\n".join(statements(kind, "context"))


def statements(kind: AttentionKind, to: str) -> list[str]:
    """From the inputs of the kind's function to the value called ``to``."""
    lines = [
        "s1 = Constant<value_float: float = @scale>()",
        "s = CastLike(s1, q)",
        "qs = Mul(q, s)",
        *prepared_keys(kind),
        *base_scores(kind, q="q", qs="qs", qpos="qpos"),
    ]
    added, score = add_scores(kind, "score", q="q", qs="qs", qpos="qpos")
    dropped, score = drop(kind, score, qpos="qpos")
    lines += [*added, *dropped, *probabilities(kind, score)]
    if kind.values is None:
        return [*lines, *multiplied(kind, to, "probs", "v")]
    extra = f"extra = {call(kind, 'values')}"
    return [*lines, *multiplied(kind, "plain", "probs", "v"), extra, f"{to} = Add(plain, extra)"]
