"""Attention by a few chunks of queries, unrolled in the graph: no Scan, and never the scores of all pairs.

A chunk's position bias covers the distances of its queries alone, (T / 4 + S) of them where whole matrices need
T + S, causal chunks leave out keys that they cannot see, and memory is a quarter. For accelerators, which run
a Scan slowly. Few queries are computed in one step.
"""

from dataclasses import replace

import onnx_ir as ir

from posexport.base.targets.target import Target
from posexport.graph.builder import Builder
from posexport.graph.lowering.attention import Attention, cache_refusal, operator_refusal
from posexport.graph.lowering.blocks import BLOCK, may_tile
from posexport.graph.lowering.lowering import Inputs, Lowering
from posexport.graph.ops.attention import AttentionSpec

#: chunks of all queries
CHUNKS = 4


class Chunked(Lowering[AttentionSpec]):
    """The formula, or ai.onnx Attention from opset 23 on, for a quarter of the queries at a time."""

    name = "chunked"
    tiles_queries = True
    why_not_preferred = "blockwise cuts finer on the CPU, and nothing was measured on CUDA"

    def refusal(self, spec: AttentionSpec, target: Target) -> str | None:
        """Not for static KV caches, nor without If."""
        flat = "the graph may hold no If (--inline): OpenVINO 2026.4 gave wrong numbers" if target.flat else None
        return cache_refusal(spec) or flat

    def build(self, g: Builder, spec: AttentionSpec, x: Inputs, target: Target) -> ir.Value:
        by_operator = target.no_attention is None and operator_refusal(spec) is None
        attention = Attention(g, spec, x, x["q"])
        if not may_tile(target) or spec.bias == "full":
            return _attend(attention, by_operator=by_operator)
        length = attention.queries()
        few = x["bias_is_full"] if spec.bias == "tiled" else g.scalar(g.LessOrEqual(length, [BLOCK]))

        def by_chunks() -> ir.Value:
            unbiased = replace(attention, spec=replace(spec, bias="none"))
            size = g.Div(g.Add(length, [CHUNKS - 1]), [CHUNKS], name="chunk_size")
            chunks = [_chunk(unbiased, number, size) for number in range(CHUNKS)]
            return g.Concat(*(_attend(chunk, by_operator=by_operator) for chunk in chunks), axis=2)

        return g.if_(
            few,
            lambda: _attend(attention, by_operator=by_operator),
            by_chunks,
            branches=("at_once", "by_chunks"),
            name="context",
        )


def _attend(attention: Attention, *, by_operator: bool) -> ir.Value:
    return attention.by_operator() if by_operator else attention.by_products()


def _chunk(attention: Attention, number: int, size: ir.Value) -> Attention:
    """The attention of one chunk's queries; causal, to the keys up to its last query."""
    g, spec, x = attention.g, attention.spec, attention.x
    start = g.Mul(size, [number])
    end = g.Add(start, size)
    chunk = attention.over(q=g.slice(x["q"], start, end, 2))
    if spec.mask == "pairs":
        chunk = chunk.over(mask=g.slice(x["mask"], start, end, 2))
    if spec.ordered:
        chunk = chunk.over(qpos=g.slice(x["qpos"], start, end, 0))
    if not spec.causal:
        return chunk
    last = g.ReduceMax(chunk.x["qpos"])
    seen = g.Max(g.Add(g.Sub(last, g.slice(x["kpos"], [0], [1], 0)), [1]), [1], name="seen_keys")
    axes = {"k": 2, "v": 2, "kpos": 0} | ({"mask": 3} if spec.mask != "none" else {})
    return chunk.over(**{name: g.slice(chunk.x[name], [0], seen, axis) for name, axis in axes.items()})
