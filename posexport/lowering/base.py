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
    for which, operator in (("scores", kind.scores), ("values", kind.values)):
        names += [f"{which}_{own}" for own in (operator.own if operator else ())]
    return [*names, "qpos", "kpos"]


def call(kind: AttentionKind, which: str, **renamed: str) -> str:
    """The text that calls a kind's ``scores`` or ``values`` operator; ``renamed`` gives the names in scope."""
    operator = kind.scores if which == "scores" else kind.values
    if operator is None:
        raise ValueError(f"{kind.name} has no {which} operator")
    names = [*operator.takes, *(f"{which}_{own}" for own in operator.own), "qpos", "kpos"]
    return f"{DOMAIN}.{operator.name}({', '.join(renamed.get(name, name) for name in names)})"


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
    return onnx.parser.parse_function(
        f'<opset_import: ["" : {opset}, "{DOMAIN}" : 1], domain: "{DOMAIN}">\n'
        f"{kind.name} <scale> ({', '.join(inputs(kind))}) => (context)\n{{\n{lowering.body(kind)}\n}}"
    )
