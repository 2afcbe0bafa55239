"""The sinusoidal features of a call's distances, and their product with the weight."""

import onnx_ir as ir

from posexport.base.targets.target import Target
from posexport.graph.builder import Builder
from posexport.graph.lowering.lowering import Inputs, Lowering
from posexport.graph.ops.waves import ProjectionSpec


class Projected(Lowering[ProjectionSpec]):
    """Standard operators of any opset: an outer product, sine, cosine, and a product with the weight."""

    name = "projected"
    why_not_preferred = "it projects the distances anew in every call"

    def build(self, g: Builder, spec: ProjectionSpec, x: Inputs, target: Target) -> ir.Value:
        return projected(g, spec, x)


def projected(g: Builder, spec: ProjectionSpec, x: Inputs) -> ir.Value:
    """[H, W, D], of the distances [W]."""
    angle = g.Mul(g.Unsqueeze(g.CastLike(x["distances"], x["frequencies"]), [-1]), x["frequencies"])
    parts = [g.Sin(angle), g.Cos(angle)]
    if spec.layout == "interleaved":
        pairs = g.Concat(*(g.Unsqueeze(feature, [-1]) for feature in parts), axis=-1)
        features = g.Reshape(pairs, [0, -1])
    else:
        features = g.Concat(*parts, axis=-1)
    # an odd number of channels has one sine more
    features = g.CastLike(g.slice(features, [0], g.size(x["weight"], 1), -1), x["weight"])
    # one product for all heads: its second factor is a matrix, which runtimes pack once
    vectors = g.MatMul(features, g.Transpose(x["weight"], perm=[1, 0]))
    return g.Transpose(g.Reshape(vectors, g.attribute("split_heads", list)), perm=[1, 0, 2])
