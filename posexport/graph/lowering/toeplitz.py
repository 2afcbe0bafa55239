"""Toeplitz bias (of distances alone) by tiles: a base strip of `CHUNK` rows is computed once, tiles gather from it.

The strip holds the bias of the first `CHUNK` queries against all keys that some chunk reads: the keys of the call, and
as many before them as chunks are shifted by. The bias of query 32 a + i at key j equals that at query i and key
j - 32 a, so every row of a tile is a run of whole chunks of one row of the strip, which one Gather copies.
"""

from dataclasses import dataclass, replace

import onnx_ir as ir

from posexport.graph.builder import Builder
from posexport.graph.lowering.attention import Attention
from posexport.graph.lowering.blocks import BLOCK
from posexport.graph.ops.skew import CHUNK


def strip(attention: Attention) -> ir.Value:
    """The bias of the first `CHUNK` queries, [H, chunks of all rows, CHUNK]."""
    g, x = attention.g, attention.x
    # keys in whole chunks, queries in whole tiles: the keys and queries of every tile end there or before
    keys, queries = _up_to(g, x["kpos"], CHUNK), _up_to(g, x["qpos"], BLOCK)
    first_query, first_key = g.slice(x["qpos"], [0], [1], 0), g.slice(x["kpos"], [0], [1], 0)
    rows = replace(attention, whole=True).over(
        qpos=g.range(first_query, g.Add(first_query, [CHUNK]), name="strip_qpos"),
        kpos=g.range(g.Sub(first_key, g.Sub(queries, [CHUNK])), g.Add(first_key, keys), name="strip_kpos"),
    )
    bias = rows.own_bias()
    return g.Reshape(bias, g.shape(g.size(bias, 1), [-1], [CHUNK]), name="bias_strip")


@dataclass(frozen=True)
class ToeplitzBias:
    """The bias of tiles, from a strip.

    Attributes:
        chunks: where the first tile's chunks are in the strip, [B_r, chunks of keys].
        first_query: position of the first query, int64 [1].
    """

    g: Builder
    strip: ir.Value
    chunks: ir.Value
    first_query: ir.Value
    heads: ir.Value

    @classmethod
    def of(cls, g: Builder, strip: ir.Value, tile: ir.Value, qpos: ir.Value, kpos: ir.Value) -> "ToeplitzBias":
        """For tiles of ``tile`` queries, int64 [1], over keys ``kpos`` in whole chunks."""
        key_chunks = g.Div(g.Shape(kpos), [CHUNK])
        row_chunks = g.Div(g.size(strip, 1), [CHUNK])
        query = g.Range(0, g.scalar(tile), 1)
        first = g.Sub(g.Mul(g.Mod(query, [CHUNK]), row_chunks), g.Div(query, [CHUNK]))
        first = g.Unsqueeze(g.Add(first, g.Sub(row_chunks, key_chunks)), [1])
        chunks = g.Add(first, g.Range(0, g.scalar(key_chunks), 1), name="strip_chunks")
        return cls(g, strip, chunks, g.slice(qpos, [0], [1], 0), g.size(strip, 0))

    def of_tile(self, qpos: ir.Value, kpos: ir.Value) -> ir.Value:
        """[1, H, B_r, S], for a tile's queries and the keys it sees, in whole chunks."""
        g = self.g
        shifted = g.Div(g.Sub(g.slice(qpos, [0], [1], 0), self.first_query), [CHUNK])
        seen = g.Slice(self.chunks, [0], g.Div(g.Shape(kpos), [CHUNK]), [1])
        chunks = g.Gather(self.strip, g.Sub(seen, shifted), axis=1)
        return g.Reshape(chunks, g.shape([1], self.heads, g.Shape(qpos), g.Shape(kpos)), name="position_bias")


def _up_to(g: Builder, positions: ir.Value, multiple: int) -> ir.Value:
    """How many positions there are, up to a whole ``multiple``, int64 [1]."""
    return g.Mul(g.Div(g.Add(g.Shape(positions), [multiple - 1]), [multiple]), [multiple])
