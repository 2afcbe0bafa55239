"""Attention tile by tile over the queries: the outer loop of FlashAttention-2 (Dao, arXiv:2307.08691, algorithm 1).

For each tile Q_i of B_r queries: its scores S_i against all keys that it can see, the position bias for just these
queries, the softmax P_i and the output O_i. Not done: the inner loop over tiles of keys with its running maximum, as
the rows S_i fit in memory. Memory grows with the length (B_r x length), not with its square, and a tile stays in the
cache. Standard operators only, the loop is a Scan; from opset 23 on a tile's attention is ai.onnx Attention.

The graph computes B_r: the fewest tiles of at most `BLOCK` queries, all of one size, so that no length pays for more
than a few padded queries. A small call (a decode step) is computed untiled: tiling, padding and joining would cost
more than they save. (An If costs little around nodes without weights.) If no input exceeds one tile, the graph has no
loop: a branch that no input reaches could not be proven.
"""

from collections.abc import Mapping
from dataclasses import replace

import onnx_ir as ir

from posexport.base.targets.target import Target
from posexport.graph.builder import Builder
from posexport.graph.lowering.attention import Attention, cache_refusal, drops_any, operator_refusal
from posexport.graph.lowering.bias import MAX_UNTILED_SCORES
from posexport.graph.lowering.blocks import BLOCK, always_tiles, always_tiles_scores, may_tile, may_tile_scores
from posexport.graph.lowering.key_chunks import causal_reach, keys_are_padded, pad_keys
from posexport.graph.lowering.lowering import Inputs, Lowering, pack_heads
from posexport.graph.lowering.query_tiles import QueryTiles
from posexport.graph.lowering.toeplitz import ToeplitzBias, strip
from posexport.graph.ops.attention import AttentionSpec
from posexport.graph.ops.skew import skews


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
        by_operator = target.no_attention is None and operator_refusal(spec) is None
        attention = Attention(g, spec, x, x["q"], mask_drops=drops_any(g, x["mask"]) if spec.mask == "keys" else None)

        def at_once() -> ir.Value:
            # few queries in grouped-query attention: the operator would copy keys and values for every head
            return _at_once(attention, by_operator=by_operator and not spec.grouped)

        def by_tiles() -> ir.Value:
            return _by_tiles(attention, target, by_operator=by_operator)

        by_scores = spec.bias == "none" and not _only_length_counts(spec)
        always_small = by_scores and not may_tile_scores(target, MAX_UNTILED_SCORES)
        if not may_tile(target) or spec.bias == "full" or always_small:
            return at_once()
        by_length = spec.bias == "none" and _only_length_counts(spec)
        if (by_length and always_tiles(target)) or (by_scores and always_tiles_scores(target, MAX_UNTILED_SCORES)):
            return by_tiles()
        return g.if_(_is_small(attention), at_once, by_tiles, branches=("at_once", "by_blocks"), name="context")


def _only_length_counts(spec: AttentionSpec) -> bool:
    """The number of queries alone decides whether there is a single tile."""
    return bool(spec.operators) or spec.causal


def _is_small(attention: Attention) -> ir.Value:
    """Whether there is a single tile, bool []."""
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


def _at_once(attention: Attention, *, by_operator: bool) -> ir.Value:
    """Computes the output O of all queries without tiles."""
    spec = attention.spec
    # where nothing else is added, the mask is; a pass over few scores costs less than asking what it drops
    if not (by_operator and spec.mask == "keys" and not spec.scores and not spec.causal):
        attention = replace(attention, mask_drops=None)
    if by_operator:
        return attention.by_operator()
    context = attention.split().by_products()
    return pack_heads(attention.g, context) if spec.packed else context


def _by_tiles(attention: Attention, target: Target, *, by_operator: bool) -> ir.Value:
    """O by the outer loop: O_i for each tile Q_i."""
    g, tiles = attention.g, QueryTiles.of(attention)
    keys = _over_keys_of_tiles(attention, target)
    toeplitz = _toeplitz(attention, keys, tiles)
    # what no tile changes is written before the loop
    keys.scale()
    if keys.spec.causal:
        reach = causal_reach(keys)
    else:
        keys.prepare_keys(by_operator=by_operator)

    def tile(q_i: ir.Value, qpos_i: ir.Value | None = None) -> ir.Value:
        attention_i = keys.over(q=q_i, **({} if qpos_i is None else {"qpos": qpos_i}))
        if keys.spec.causal:
            attention_i = reach(attention_i)
        if toeplitz is not None and qpos_i is not None:
            bias_i = toeplitz.of_tile(qpos_i, attention_i.x["kpos"])
            attention_i = replace(attention_i, position_bias=bias_i)
        if by_operator:
            return attention_i.by_operator()
        s_i = attention_i.biased(attention_i.raw_scores())
        p_i = attention_i.probabilities(s_i)
        return attention_i.output(p_i)

    scanned: Mapping[str, ir.Value] = {"q_i": tiles.q} | ({} if tiles.qpos is None else {"qpos_i": tiles.qpos})
    return tiles.join(g.scan(tile, scanned, body_name="each_block", name="o_tiles"))


def _over_keys_of_tiles(attention: Attention, target: Target) -> Attention:
    """Split heads, the bias of the tile, and keys in whole chunks where an operator has a relative shift."""
    spec = attention.spec
    unbiased = replace(attention.split(), spec=replace(spec.split, bias="none"))
    if spec.base is not None or not any(skews(operator) for operator in spec.operators.values()):
        return unbiased
    padded = keys_are_padded(target)
    aligned = replace(pad_keys(unbiased, padded=padded), whole=True)
    if aligned.spec.mask == "none" or spec.causal:  # causality alone drops padded keys
        return aligned
    always = padded and spec.bias == "none"
    return replace(aligned, mask_drops=None if always else drops_any(aligned.g, aligned.x["mask"]))


def _toeplitz(attention: Attention, keys: Attention, tiles: QueryTiles) -> ToeplitzBias | None:
    """What tiles gather their bias from, where it is of distances alone; ``keys``: attention over keys in chunks."""
    if not (keys.whole and keys.spec.toeplitz):
        return None
    of_call = keys.over(kpos=attention.x["kpos"])
    rows = attention.x["bias_strip"] if attention.spec.bias == "tiled" else strip(of_call)
    return ToeplitzBias.of(attention.g, rows, tiles.tile, attention.x["qpos"], keys.x["kpos"])
