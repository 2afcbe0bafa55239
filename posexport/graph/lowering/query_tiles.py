"""Tiles of queries, all of one size, stacked along a first axis for a Scan; and their outputs joined again."""

from dataclasses import dataclass

import onnx_ir as ir

from posexport.graph.lowering.attention import Attention
from posexport.graph.lowering.blocks import BLOCK
from posexport.graph.ops.skew import CHUNK


@dataclass(frozen=True)
class QueryTiles:
    """Queries in tiles of B_r.

    Attributes:
        attention: of all queries.
        tile: B_r, int64 [1].
        padded: queries in all tiles, int64 [1].
        q: [tiles, B, H, B_r, D].
        qpos: [tiles, B_r]; None where positions do not count.
    """

    attention: Attention
    tile: ir.Value
    padded: ir.Value
    q: ir.Value
    qpos: ir.Value | None

    @classmethod
    def of(cls, attention: Attention) -> "QueryTiles":
        """Pad the queries to the fewest tiles of at most `BLOCK` that are whole chunks, and stack these."""
        g, spec, x = attention.g, attention.spec, attention.x
        length = attention.queries()
        tiles = g.Div(g.Add(length, [BLOCK - 1]), [BLOCK], name="tiles")
        chunks_of_all = g.Mul(tiles, [CHUNK])
        chunks = g.Div(g.Sub(g.Add(length, chunks_of_all), [1]), chunks_of_all)
        tile = g.Mul(chunks, [CHUNK], name="tile")
        padded = g.Mul(tiles, tile, name="padded")
        missing = g.Sub(padded, length)
        if spec.packed:
            heads = g.Unsqueeze(g.attribute("heads", int), [0])
            pads, perm = g.shape([0, 0, 0, 0], missing, [0]), [1, 0, 3, 2, 4]
            shape = g.shape(g.size(x["q"], 0), tiles, tile, heads, [-1])
        else:
            pads, perm = g.shape([0, 0, 0, 0, 0, 0], missing, [0]), [2, 0, 1, 3, 4]
            shape = g.shape(g.Shape(x["q"], start=0, end=2), tiles, tile, g.size(x["q"], 3))
        q = g.Transpose(g.Reshape(g.Pad(x["q"], pads), shape), perm=perm, name="q_tiles")
        if not spec.ordered:
            return cls(attention, tile, padded, q, None)
        first = g.slice(x["qpos"], [0], [1], 0)
        positions = g.range(first, g.Add(first, padded))
        return cls(attention, tile, padded, q, g.Reshape(positions, g.shape(tiles, tile), name="qpos_tiles"))

    def join(self, outputs: ir.Value) -> ir.Value:
        """O from the tiles' O_i [tiles, B, H, B_r, V], without what was padded."""
        g, spec, x = self.attention.g, self.attention.spec, self.attention.x
        if spec.packed:
            perm, shape, axis = [1, 0, 3, 2, 4], g.shape(g.size(x["q"], 0), self.padded, [-1]), 1
        else:
            lead = g.Shape(x["q"], start=0, end=2)
            perm, shape, axis = [1, 2, 0, 3, 4], g.shape(lead, self.padded, g.size(x["v"], 3)), 2
        joined = g.Reshape(g.Transpose(outputs, perm=perm), shape)
        return g.slice(joined, [0], self.attention.queries(), axis)
