"""Attention as the formula has it: all scores at once.

Memory grows with heads times the square of the length. The body a reader checks the others against.
"""

from posexport.lowering.base import add_scores, call
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
            "kt = Transpose<perm = [0, 1, 3, 2]>(k)",
            "score = MatMul(qs, kt)",
        ]
        added, score = add_scores(kind, "score", q="q", qs="qs", qpos="qpos")
        lines += added
        lines.append(f"masked = Identity({score})" if kind.mask == "none" else f"masked = Add({score}, mask)")
        lines.append("probs = Softmax<axis = -1>(masked)")
        if kind.values is None:
            lines.append("context = MatMul(probs, v)")
        else:
            lines += ["plain = MatMul(probs, v)", f"extra = {call(kind, 'values')}", "context = Add(plain, extra)"]
        return "\n".join(lines)
