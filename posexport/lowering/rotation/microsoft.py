"""Rotation by ONNX Runtime's RotaryEmbedding, which looks rows of cosines and sines up by the tokens' numbers.

The rows are those of the call at hand: of one row of the batch where all rows share them, the tokens' numbers counting
from 0; otherwise of all, one row after the other. Numbers and rows are the same in all layers, which ONNX Runtime sees.
"""

from collections.abc import Mapping

from posexport.lowering.rotation.onnx import attributes
from posexport.ops.rotation import RotationKind
from posexport.targets.target import MICROSOFT, Target


class MicrosoftRotary:
    """The operator, on tables of this call's tokens."""

    name = "ms-rotary"
    cuts = False
    joins = True
    beaten = "ai.onnx RotaryEmbedding is as fast and needs no numbers of the tokens"

    def domains(self, kind: RotationKind, target: Target) -> Mapping[str, int]:
        """ONNX Runtime's own."""
        del kind, target
        return {MICROSOFT: 1}

    def refusal(self, kind: RotationKind, target: Target) -> str | None:
        """Only for ONNX Runtime."""
        del kind
        return target.needs_microsoft("com.microsoft RotaryEmbedding")

    def body(self, kind: RotationKind, target: Target) -> str:
        """The statements, in the ONNX text format."""
        del target
        lines = ["wide = CastLike(x, cos)", "zero = Constant<value_ints = [0]>()"]
        if kind.shared:
            # one number stands for the first token of every row
            numbers = "zero"
            lines += [
                "axes = Constant<value_ints = [0, 1]>()",
                "cos_rows = Squeeze(cos, axes)",
                "sin_rows = Squeeze(sin, axes)",
            ]
        else:
            numbers = "numbers"
            lines += [
                "rest = Constant<value_ints = [-1]>()",
                "pairs = Shape<start = 3, end = 4>(cos)",
                "table = Concat<axis = 0>(rest, pairs)",
                "cos_rows = Reshape(cos, table)",
                "sin_rows = Reshape(sin, table)",
                "rows = Shape<start = 0, end = 1>(cos_rows)",
                "end = Squeeze(rows, zero)",
                "first = Constant<value_int = 0>()",
                "step = Constant<value_int = 1>()",
                "counted = Range(first, end, step)",
                "batch = Shape<start = 0, end = 1>(cos)",
                "length = Shape<start = 2, end = 3>(cos)",
                "by_row = Concat<axis = 0>(batch, length)",
                "numbers = Reshape(counted, by_row)",
            ]
        lines.append(f"all = {MICROSOFT}.RotaryEmbedding{attributes(kind)}(wide, {numbers}, cos_rows, sin_rows)")
        return "\n".join([*lines, "turned = CastLike(all, x)"])
