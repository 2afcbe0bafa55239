"""What positions, causality and padding add to the scores, computed once for all layers that share it.

T5's bias costs a pass over all pairs in every layer, unless it is there already and the product of queries and keys
starts from it. It is held as long as it is small: all of ``[B, H, T, S]`` up to `MAX_SHARED_BIAS_ELEMENTS`, and for
causality and padding alone, which every tile can cheaply compute, only where attention holds all scores anyway.
"""

import onnx_ir as ir

from posexport.base.targets.target import Target
from posexport.graph.builder import Builder
from posexport.graph.lowering.attention import Attention
from posexport.graph.lowering.blocks import BLOCK
from posexport.graph.lowering.lowering import Inputs, Lowering, Outputs
from posexport.graph.lowering.toeplitz import strip
from posexport.graph.ops.attention import AttentionSpec, BiasSpec
from posexport.graph.ops.skew import CHUNK

#: elements of a bias that is held for all layers, 64 MB of float32: beyond that a fresh process is faster by tiles, but
#: for a few queries, as in a decode step of a large batch, which are not worth tiling
MAX_SHARED_BIAS_ELEMENTS = 1 << 24
#: pairs of all heads up to which all scores are computed untiled, without a position bias
MAX_UNTILED_SCORES = 1 << 22


class SharedBias(Lowering[BiasSpec]):
    """All of the bias; of a tiled one, where that is too large, the strip of a Toeplitz bias or nothing."""

    name = "shared"

    def build(self, g: Builder, spec: BiasSpec, x: Inputs, target: Target) -> Outputs:
        operator = spec.score_operator
        like = x["mask" if operator is None or spec.mask != "none" else f"scores_{operator.own[0]}"]
        attention = Attention(g, AttentionSpec(spec.scores, spec.mask, spec.causal), x, like)

        def bias() -> ir.Value:
            value = attention.bias()
            assert value is not None
            return value

        def empty(*shape: int) -> ir.Value:
            return g.CastLike(g.ConstantOfShape(list(shape)), like)

        if not spec.tiled:
            return bias()
        is_full = _is_full(g, spec, x)

        def whole() -> tuple[ir.Value, ...]:
            return (bias(), *([empty(0, 0, CHUNK)] if spec.toeplitz else []))

        def by_tiles() -> tuple[ir.Value, ...]:
            return (empty(1, 1, 0, 0), *([strip(attention)] if spec.toeplitz else []))

        names = ["bias", *["bias_strip"] * spec.toeplitz]
        full, *strips = g.if_(is_full, whole, by_tiles, branches=("once", "by_block"), name=names)
        return full, is_full, *strips


def _is_full(g: Builder, spec: BiasSpec, x: Inputs) -> ir.Value:
    """Whether the bias of all pairs is held, bool []."""
    batch = g.size(x["mask"], 0) if spec.mask != "none" else [1]
    queries, keys = g.Shape(x["qpos"]), g.Shape(x["kpos"])
    elements = g.Mul(g.Mul(batch, g.attribute("heads", int)), g.Mul(queries, keys))
    most = MAX_SHARED_BIAS_ELEMENTS if spec.scores else MAX_UNTILED_SCORES
    fits = g.Or(g.LessOrEqual(elements, [most]), g.LessOrEqual(queries, [CHUNK]))
    if spec.causal:
        fits = g.And(fits, g.LessOrEqual(queries, [BLOCK]))
    return g.scalar(fits)
