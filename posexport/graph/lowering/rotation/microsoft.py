"""Rotation by ONNX Runtime's RotaryEmbedding, which looks rows of cosines and sines up by the tokens' indices.

The tables hold the rows of the current call. Where all rows of the batch share them, they are the tokens of one row,
indexed from 0; otherwise the tokens of all rows, concatenated. Indices and tables are the same in all layers, so ONNX
Runtime computes them once.
"""

import onnx_ir as ir

from posexport.base.targets.target import MICROSOFT, Target
from posexport.graph.builder import Builder, Operand
from posexport.graph.lowering.lowering import Inputs, Lowering
from posexport.graph.lowering.rotation.onnx import attributes, with_heads
from posexport.graph.ops.rotation import RotationSpec


class MicrosoftRotary(Lowering[RotationSpec]):
    """The operator, on tables of this call's tokens."""

    name = "ms-rotary"
    accepts_packed_heads = True
    why_not_preferred = "ai.onnx RotaryEmbedding is as fast and needs no numbers of the tokens"

    def refusal(self, spec: RotationSpec, target: Target) -> str | None:
        return target.needs_microsoft("com.microsoft RotaryEmbedding")

    def build(self, g: Builder, spec: RotationSpec, x: Inputs, target: Target) -> ir.Value:
        cos, sin = with_heads(g, spec, x)
        wide = g.CastLike(x["x"], cos)
        if spec.shared:
            # one index of the first token serves every row
            indices: Operand = [0]
            cos_rows, sin_rows = g.Squeeze(cos, [0, 1]), g.Squeeze(sin, [0, 1])
        else:
            table = g.shape([-1], g.size(cos, 3))
            cos_rows, sin_rows = g.Reshape(cos, table), g.Reshape(sin, table)
            all_tokens = g.Range(0, g.scalar(g.size(cos_rows, 0)), 1)
            indices = g.Reshape(all_tokens, g.shape(g.size(cos, 0), g.size(cos, 2)))
        rotated = g.op("RotaryEmbedding", wide, indices, cos_rows, sin_rows, domain=MICROSOFT, **attributes(g, spec))
        return g.CastLike(rotated, x["x"])
