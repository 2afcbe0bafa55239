"""Attention tile by tile over the queries: the outer loop of FlashAttention-2 (Dao, arXiv:2307.08691, algorithm 1).

For each tile Q_i of B_r queries: its scores S_i against all keys that it can see, the position bias for just these
queries, the softmax P_i and the output O_i. Not done: the inner loop over tiles of keys with its running maximum, as
the rows S_i fit in memory. Memory grows with the length (B_r x length), not with its square, and a tile stays in the
cache. Standard operators only, the loop is a Scan; from opset 23 on a tile's attention is ai.onnx Attention.

The graph computes B_r: the fewest tiles of at most `BLOCK` queries, all of one size, so that no length pays for more
than a few padded queries. What is small, such as a decode step, is computed at once: it would pay for tiling, padding
and joining. (An If costs little around nodes without weights.) A model whose inputs never exceed one tile has no loop:
a branch that no input reaches could not be proven.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import onnx_ir as ir

from posexport.graph.builder import Builder
from posexport.lowering.attention import Attention, cache_refusal, drops_any, operator_refusal
from posexport.lowering.bias import MAX_UNTILED_SCORES
from posexport.lowering.blocks import BLOCK, always_tiles, may_tile
from posexport.lowering.heads import pack_heads
from posexport.lowering.key_chunks import causal_reach, keys_are_padded, pad_keys
from posexport.lowering.lowering import Inputs, Lowering
from posexport.lowering.query_tiles import QueryTiles
from posexport.lowering.toeplitz import ToeplitzBias, strip
from posexport.ops.attention import AttentionSpec
from posexport.ops.skew import skews
from posexport.targets.target import ATTENTION_OPSET, Target


class Tiled(Lowering[AttentionSpec]):
    """The formula, one tile of queries at a time."""

    name = "blockwise"
    tiles_queries = True
    accepts_packed_heads = True
    why_not_preferred = "a Scan goes step by step, which an accelerator does slowly"

    def refusal(self, spec: AttentionSpec, target: Target) -> str | None:
        """Not for masks over pairs: a tile would need its rows of the mask."""
        if spec.mask == "pairs":
            return "the mask has a row for every query; tiles are made for masks over keys"
        return cache_refusal(spec) or ("the graph may hold no Scan (--inline)" if target.flat else None)

    def build(self, g: Builder, spec: AttentionSpec, x: Inputs, target: Target) -> ir.Value:
        by_operator = target.opset >= ATTENTION_OPSET and operator_refusal(spec) is None
        attention = Attention(g, spec, x, x["q"], mask_drops=drops_any(g, x["mask"]) if spec.mask == "keys" else None)
        # few queries in grouped-query attention: the operator would copy keys and values for every head
        at_once = _AtOnce(attention, by_operator=by_operator and not spec.grouped)
        by_tiles = _ByTiles(attention, target, by_operator=by_operator)
        if not may_tile(target) or spec.bias == "full":
            return at_once()
        if always_tiles(target) and spec.bias == "none" and _only_length_counts(spec):
            return by_tiles()
        attention.queries()
        return g.if_(_is_small(attention), at_once, by_tiles, branches=("at_once", "by_blocks"), name="context")


def _only_length_counts(spec: AttentionSpec) -> bool:
    """The number of queries decides alone whether all is computed at once."""
    return bool(spec.operators) or spec.causal


def _is_small(attention: Attention) -> ir.Value:
    """Whether all is computed at once, bool []."""
    g, spec, x = attention.g, attention.spec, attention.x
    if spec.bias == "tiled":
        return x["bias_is_full"]
    if _only_length_counts(spec):
        return g.scalar(g.LessOrEqual(attention.queries(), [BLOCK]))
    rows = g.ReduceProd(g.Shape(x["q"], end=2 if spec.packed else 3), keepdims=1)
    if spec.packed:
        rows = g.Mul(rows, g.attribute("heads", int))
    scores = g.Mul(rows, g.size(x["k"], 1 if spec.packed else 2))
    return g.scalar(g.LessOrEqual(scores, [MAX_UNTILED_SCORES]))


@dataclass(frozen=True)
class _AtOnce:
    """All queries at once."""

    attention: Attention
    by_operator: bool

    def __call__(self) -> ir.Value:
        attention, spec = self.attention, self.attention.spec
        # where nothing else is added, the mask is; a pass over few scores costs less than asking what it drops
        if not (self.by_operator and spec.mask == "keys" and not spec.scores and not spec.causal):
            attention = replace(attention, mask_drops=None)
        if self.by_operator:
            return attention.by_operator()
        context = attention.split().by_products()
        return pack_heads(attention.g, context) if spec.packed else context


@dataclass(frozen=True)
class _ByTiles:
    """The outer loop."""

    attention: Attention
    target: Target
    by_operator: bool

    def __call__(self) -> ir.Value:
        g, outside = self.attention.g, self.attention
        tiles = QueryTiles.of(outside)
        attention, toeplitz = self._over_all_keys(tiles)
        spec = attention.spec
        attention.scale()
        if spec.causal:
            reach = causal_reach(attention)
        else:
            attention.prepare_keys(by_operator=self.by_operator)

        def tile(q_i: ir.Value, qpos_i: ir.Value | None = None) -> ir.Value:
            """O_i of the queries Q_i."""
            seen = attention.over(q=q_i, **({} if qpos_i is None else {"qpos": qpos_i}))
            if spec.causal:
                seen = reach(seen)
            if toeplitz is not None and qpos_i is not None:
                seen = replace(seen, position_bias=toeplitz.of_tile(qpos_i, seen.x["kpos"]))
            return seen.by_operator() if self.by_operator else seen.by_products()

        scanned: Mapping[str, ir.Value] = {"q_i": tiles.q} | ({} if tiles.qpos is None else {"qpos_i": tiles.qpos})
        return tiles.join(g.scan(tile, scanned, body_name="each_block", name="o_tiles"))

    def _over_all_keys(self, tiles: QueryTiles) -> tuple[Attention, ToeplitzBias | None]:
        """Attention of split heads without a ready bias; for a relative shift over keys in whole chunks."""
        outer, spec, g = self.attention, self.attention.spec, self.attention.g
        attention = replace(outer.split(), spec=replace(spec.split, bias="none"))
        if spec.base is not None or not any(skews(operator) for operator in spec.operators.values()):
            return attention, None
        padded = keys_are_padded(self.target)
        attention = replace(pad_keys(attention, padded=padded), whole=True)
        if attention.spec.mask == "keys" and not spec.causal:
            # padded keys are dropped too; where causality drops them, it does so alone
            always = padded and spec.bias == "none"
            attention = replace(attention, mask_drops=None if always else drops_any(g, attention.x["mask"]))
        if not spec.toeplitz:
            return attention, None
        first_rows = (
            outer.x["bias_strip"] if spec.bias == "tiled" else strip(replace(outer.split(), spec=attention.spec))
        )
        return attention, ToeplitzBias.of(g, first_rows, tiles.tile, outer.x["qpos"], attention.x["kpos"])
