"""Rotation by one operator of ONNX, ai.onnx RotaryEmbedding (opset 23)."""

from typing import Any

import onnx_ir as ir

from posexport.base.targets.target import ATTENTION_OPSET, Target
from posexport.graph.builder import Builder
from posexport.graph.lowering.lowering import Inputs, Lowering
from posexport.graph.ops.rotation import RotationSpec


def attributes(g: Builder, spec: RotationSpec) -> dict[str, Any]:
    """Of the operator, in both domains: ONNX Runtime and ONNX have the same."""
    partial = {"rotary_embedding_dim": g.attribute("dim", int)} if spec.partial else {}
    heads = {"num_heads": g.attribute("heads", int)} if spec.partial or spec.packed else {}
    return {"interleaved": int(spec.layout == "interleaved"), **partial, **heads}


def with_heads(g: Builder, spec: RotationSpec, x: Inputs) -> tuple[ir.Value, ir.Value]:
    """Cosines and sines with an axis of heads, [B or 1, 1, T, F]."""
    cos, sin = (g.Unsqueeze(x[name], [1]) if spec.squeezed else x[name] for name in ("cos", "sin"))
    return cos, sin


class OnnxRotary(Lowering[RotationSpec]):
    """The operator, with a row of cosines and sines for every token of every row of the batch."""

    name = "rotary"
    accepts_packed_heads = True
    why_not_preferred = "cosines and sines that all rows share would be copied for every row, in every layer"

    def refusal(self, spec: RotationSpec, target: Target) -> str | None:
        """Not before opset 23, and not for runtimes that know few operators."""
        known = "runtimes without functions seldom know ai.onnx RotaryEmbedding" if target.flat else None
        return target.needs(ATTENTION_OPSET, "ai.onnx RotaryEmbedding") or known

    def build(self, g: Builder, spec: RotationSpec, x: Inputs, target: Target) -> ir.Value:
        """The operator does not broadcast over the batch."""
        cos, sin = (x[name] if spec.squeezed else g.Squeeze(x[name], [1]) for name in ("cos", "sin"))
        if spec.shared:
            every_row = g.shape(g.size(x["x"], 0), [1], [1])
            cos, sin = g.Expand(cos, every_row), g.Expand(sin, every_row)
        rotated = g.RotaryEmbedding(g.CastLike(x["x"], x["cos"]), cos, sin, **attributes(g, spec))
        return g.CastLike(rotated, x["x"])
