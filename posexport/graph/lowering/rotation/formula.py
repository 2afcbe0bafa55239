"""Rotation as the formula has it, in products and sums of the pairs' first and second channels."""

import onnx_ir as ir

from posexport.base.targets.target import Target
from posexport.graph.builder import Builder
from posexport.graph.lowering.lowering import Inputs, Lowering
from posexport.graph.lowering.rotation.onnx import with_heads
from posexport.graph.ops.rotation import RotationSpec


class Turned(Lowering[RotationSpec]):
    """``a cos - b sin`` and ``b cos + a sin``: standard operators of any opset."""

    name = "turned"
    why_not_preferred = "it passes several times over queries and keys where one operator passes once"

    def build(self, g: Builder, spec: RotationSpec, x: Inputs, target: Target) -> ir.Value:
        cos, sin = with_heads(g, spec, x)
        wide = g.CastLike(x["x"], cos)
        rest: list[ir.Value] = []
        if spec.layout == "half":
            names = ["first", "second", *["rest"] * spec.partial]
            first, second, *rest = _split(g, wide, names, partial=spec.partial)
        else:
            if spec.partial:
                wide, *rest = _split(g, wide, ["rotating", "rest"], partial=True)
            # channels of a pair on a separate axis: cheaper than slices with steps, or Gather
            pairs = g.Reshape(wide, [0, 0, 0, -1, 2])
            first, second = _split(g, pairs, ["first", "second"], partial=False)
            cos, sin = g.Unsqueeze(cos, [-1]), g.Unsqueeze(sin, [-1])
        real = g.Sub(g.Mul(first, cos), g.Mul(second, sin))
        imaginary = g.Add(g.Mul(second, cos), g.Mul(first, sin))
        parts = [real, imaginary]
        if spec.layout == "interleaved":
            parts = [g.Reshape(g.Concat(*parts, axis=-1), [0, 0, 0, -1])]
        whole = [*parts, *rest]
        return g.CastLike(g.Concat(*whole, axis=-1) if len(whole) > 1 else whole[0], x["x"])


def _split(g: Builder, x: ir.Value, names: list[str], *, partial: bool) -> tuple[ir.Value, ...]:
    """``x`` in equal parts along its last axis, or in the parts that the attribute says."""
    if partial:
        return g.several("Split", names, x, g.attribute("parts", list), axis=-1)
    return g.several("Split", names, x, axis=-1, num_outputs=len(names))
