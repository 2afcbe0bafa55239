"""What a way of computing attention must say about itself.

A lowering gives the attention node of one kind (`posexport.ops.attention`) its body: a function of domain ``posexport``
whose body uses standard operators and the position operators. All bodies have the same inputs, so that any can stand
for any other.
"""

from typing import Protocol

import onnx
import onnx.parser

from posexport.ops.attention import AttentionKind
from posexport.ops.base import DOMAIN


class Lowering(Protocol):
    """One way. ``name`` is what ``--lowering`` takes and the manifest records; ``scans``: its body holds a Scan."""

    name: str
    scans: bool

    def refusal(self, kind: AttentionKind) -> str | None:
        """Why this way does not apply to ``kind``; None when it does."""
        ...

    def body(self, kind: AttentionKind) -> str:
        """The statements of the function, in the ONNX text format, from the inputs to ``context``."""
        ...


def inputs(kind: AttentionKind) -> list[str]:
    """Names of the inputs of a kind's function, in order."""
    names = ["q", "k", "v"]
    if kind.mask != "none":
        names.append("mask")
    if kind.sink:
        names.append("sink")
    for which, operator in kind.operators.items():
        names += [f"{which}_{own}" for own in operator.own]
    return [*names, "qpos", "kpos"]


def call(kind: AttentionKind, which: str, **renamed: str) -> str:
    """The text that calls a kind's operator for ``which`` part; ``renamed`` gives the names in scope."""
    operator = kind.operators[which]
    names = [*operator.takes, *(f"{which}_{own}" for own in operator.own), "qpos", "kpos"]
    return f"{DOMAIN}.{operator.name}({', '.join(renamed.get(name, name) for name in names)})"


def base_scores(kind: AttentionKind, *, q: str, qs: str, qpos: str) -> list[str]:
    """Statements that give ``score``, scaled: q k^T or the operator in its place. ``kt`` is in scope for the first."""
    if kind.base is None:
        return multiplied(kind, "score", qs, "kt")
    return [f"raw_score = {call(kind, 'base', q=q, qpos=qpos)}", "score = Mul(raw_score, s)"]


def multiplied(kind: AttentionKind, to: str, x: str, y: str) -> list[str]:
    """Statements that give ``to``, the products of ``x [B, H, T, N]`` with ``y``, keys or values of every head.

    Where groups of heads share these, the heads of a group stand one below the other: one product a group, no copies.
    """
    if not kind.grouped:
        return [f"{to} = MatMul({x}, {y})"]
    return [
        # not of y: a transposed k that nothing but a product reads is fused into it
        f"{to}_lead = Shape<start = 0, end = 2>(k)",
        f"{to}_inner = Shape<start = 3, end = 4>({x})",
        f"{to}_rest = Constant<value_ints = [-1]>()",
        f"{to}_stacked = Concat<axis = 0>({to}_lead, {to}_rest, {to}_inner)",
        f"{to}_x = Reshape({x}, {to}_stacked)",
        f"{to}_product = MatMul({to}_x, {y})",
        f"{to}_heads = Shape<start = 0, end = 3>({x})",
        f"{to}_shape = Concat<axis = 0>({to}_heads, {to}_rest)",
        f"{to} = Reshape({to}_product, {to}_shape)",
    ]


def prepared_keys(kind: AttentionKind) -> list[str]:
    """The statements that give ``kt`` and ``ks``, keys transposed and scaled, where they are needed."""
    lines = [] if kind.base is not None else ["kt = Transpose<perm = [0, 1, 3, 2]>(k)"]
    linear = kind.scores is not None and kind.scores.scaled and kind.scores.linear and "k" in kind.scores.takes
    return [*lines, "ks = Mul(k, s)"] if linear else lines


def drop(kind: AttentionKind, score: str, *, qpos: str) -> tuple[list[str], str]:
    """Statements that drop keys after the query and masked ones from the value named ``score``; the result's name."""
    lines = []
    if kind.causal:
        lines += [
            "minus_one = Constant<value_ints = [-1]>()",
            f"q_at = Unsqueeze({qpos}, minus_one)",
            "later = Less(q_at, kpos)",
            "low1 = Constant<value_float: float = @lowest>()",
            "low = CastLike(low1, q)",
            f"seen = Where(later, low, {score})",
        ]
        score = "seen"
    if kind.mask != "none":
        lines.append(f"masked = Add({score}, mask)")
        score = "masked"
    return lines, score


def probabilities(kind: AttentionKind, score: str) -> list[str]:
    """Statements that give ``probs`` from the value named ``score``, [B, H, T, S]."""
    if not kind.sink:
        return [f"probs = Softmax<axis = -1>({score})"]
    return [
        "sink_heads = Constant<value_ints = [1, -1, 1, 1]>()",
        "sink_each = Reshape(sink, sink_heads)",
        f"sink_lead = Shape<start = 0, end = 3>({score})",
        "sink_one = Constant<value_ints = [1]>()",
        "sink_shape = Concat<axis = 0>(sink_lead, sink_one)",
        "sink_column = Expand(sink_each, sink_shape)",
        f"with_sink = Concat<axis = -1>({score}, sink_column)",
        "probs_and_sink = Softmax<axis = -1>(with_sink)",
        "sink_zero = Constant<value_ints = [0]>()",
        "sink_last = Constant<value_ints = [-1]>()",
        "probs = Slice(probs_and_sink, sink_zero, sink_last, sink_last)",
    ]


def add_scores(kind: AttentionKind, score: str, *, q: str, qs: str, qpos: str) -> tuple[list[str], str]:
    """Statements that add the kind's score term to the value named ``score``, which is scaled; and the sum's name.

    ``q`` and ``qs`` name the queries as they are and scaled, ``qpos`` their positions; ``ks``, the keys scaled, and
    ``s``, the scale, are in scope. A term that is linear in both takes them scaled: that saves a pass over the scores.
    """
    if kind.scores is None:
        return [], score
    if not kind.scores.scaled:
        lines = [f"term = {call(kind, 'scores', q=q, qpos=qpos)}"]
    elif kind.scores.linear:
        along = {f"scores_{own}": f"scaled_{own}" for own in kind.scores.scaled_along}
        lines = [f"{scaled} = Mul({own}, s)" for own, scaled in along.items()]
        lines.append(f"term = {call(kind, 'scores', q=qs, k='ks', qpos=qpos, **along)}")
    else:
        lines = [f"raw_term = {call(kind, 'scores', q=q, qpos=qpos)}", "term = Mul(raw_term, s)"]
    return [*lines, f"with_term = Add({score}, term)"], "with_term"


def function(lowering: Lowering, kind: AttentionKind, opset: int) -> onnx.FunctionProto:
    """The function that gives nodes of ``kind`` their meaning, for a model of the given opset."""
    attributes = "scale, lowest" if kind.causal else "scale"
    return onnx.parser.parse_function(
        f'<opset_import: ["" : {opset}, "{DOMAIN}" : 1], domain: "{DOMAIN}">\n'
        f"{kind.name} <{attributes}> ({', '.join(inputs(kind))}) => (context)\n{{\n{lowering.body(kind)}\n}}"
    )
