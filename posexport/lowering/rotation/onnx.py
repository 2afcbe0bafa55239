"""Rotation by one operator of ONNX, ai.onnx RotaryEmbedding (opset 23)."""

from collections.abc import Mapping

from posexport.ops.rotation import RotationKind
from posexport.targets.target import ATTENTION_OPSET, Target

#: of the operator, in both domains
_PARTIAL, _HEADS = ", rotary_embedding_dim: int = @dim", ", num_heads: int = @heads"


def attributes(kind: RotationKind) -> str:
    """The operator's attributes, in the ONNX text format; ONNX Runtime and ONNX have the same."""
    heads = _HEADS * (kind.partial or kind.joined)
    return f"<interleaved = {int(kind.layout == 'interleaved')}{_PARTIAL * kind.partial}{heads}>"


class OnnxRotary:
    """The operator, with a row of cosines and sines for every token of every row of the batch."""

    name = "rotary"
    cuts = False
    joins = True
    beaten = "cosines and sines that all rows share would be copied for every row, in every layer"

    def domains(self, kind: RotationKind, target: Target) -> Mapping[str, int]:
        """Standard operators only."""
        del kind, target
        return {}

    def refusal(self, kind: RotationKind, target: Target) -> str | None:
        """Not before opset 23, and not for runtimes that know few operators."""
        del kind
        known = "runtimes without functions seldom know ai.onnx RotaryEmbedding" if target.flat else None
        return target.needs(ATTENTION_OPSET, "ai.onnx RotaryEmbedding") or known

    def body(self, kind: RotationKind, target: Target) -> str:
        """The statements, in the ONNX text format. The operator does not broadcast over the batch."""
        del target
        lines = [
            "wide = CastLike(x, cos)",
            "one = Constant<value_ints = [1]>()",
            "cos_rows = Squeeze(cos, one)",
            "sin_rows = Squeeze(sin, one)",
        ]
        cos, sin = "cos_rows", "sin_rows"
        if kind.shared:
            cos, sin = "cos_each", "sin_each"
            lines += [
                "batch = Shape<start = 0, end = 1>(x)",
                "each = Concat<axis = 0>(batch, one, one)",
                "cos_each = Expand(cos_rows, each)",
                "sin_each = Expand(sin_rows, each)",
            ]
        lines.append(f"all = RotaryEmbedding{attributes(kind)}(wide, {cos}, {sin})")
        return "\n".join([*lines, "turned = CastLike(all, x)"])
