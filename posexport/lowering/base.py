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
    """One way. ``name`` is what ``--lowering`` takes and the manifest records."""

    name: str

    def refusal(self, kind: AttentionKind) -> str | None:
        """Why this way does not apply to ``kind``; None when it does."""
        ...

    def body(self, kind: AttentionKind) -> str:
        """The statements of the function, in the ONNX text format, from the inputs to ``context``."""
        ...


def inputs(kind: AttentionKind) -> list[str]:
    """Names of the inputs of a kind's function, in order. Every operator of today has exactly one table."""
    names = ["q", "k", "v"]
    if kind.mask != "none":
        names.append("mask")
    if kind.scores is not None:
        names.append("scores_table")
    if kind.values is not None:
        names.append("values_table")
    return [*names, "qpos", "kpos"]


def call(kind: AttentionKind, which: str, **renamed: str) -> str:
    """The text that calls a kind's ``scores`` or ``values`` operator; ``renamed`` gives the names in scope."""
    operator = kind.scores if which == "scores" else kind.values
    if operator is None:
        raise ValueError(f"{kind.name} has no {which} operator")
    names = [*operator.takes, f"{which}_table", "qpos", "kpos"]
    return f"{DOMAIN}.{operator.name}({', '.join(renamed.get(name, name) for name in names)})"


def function(lowering: Lowering, kind: AttentionKind, opset: int) -> onnx.FunctionProto:
    """The function that gives nodes of ``kind`` their meaning, for a model of the given opset."""
    return onnx.parser.parse_function(
        f'<opset_import: ["" : {opset}, "{DOMAIN}" : 1], domain: "{DOMAIN}">\n'
        f"{kind.name} <scale> ({', '.join(inputs(kind))}) => (context)\n{{\n{lowering.body(kind)}\n}}"
    )
