"""Attention by a few chunks of queries, one behind the other in the graph: no Scan, and no scores of all pairs at once.

A chunk's position term meets the distances of its own queries alone, (T / 4 + S) of them where whole matrices need
T + S, causal chunks leave out keys that they cannot see, and what is held is a quarter. For accelerators, which go
through a Scan slowly. Few queries are computed at once.
"""

from collections.abc import Mapping
from dataclasses import replace

from posexport.lowering.bias import HELD
from posexport.lowering.blocks import BLOCK, may_tile
from posexport.lowering.scores import (
    SCALE,
    by_operator,
    by_products,
    cache_refusal,
    operator_refusal,
    prepared_keys,
    scaled_keys,
)
from posexport.lowering.text import lines, named, numbered
from posexport.ops.attention import AttentionKind
from posexport.targets.target import ATTENTION_OPSET, Target

#: chunks of all queries
CHUNKS = 4


class Chunked:
    """The formula, or ai.onnx Attention from opset 23 on, for a quarter of the queries at a time."""

    name = "chunked"
    cuts = True
    joins = False
    beaten = "blockwise cuts finer on the CPU, and nothing was measured on CUDA"

    def domains(self, kind: AttentionKind, target: Target) -> Mapping[str, int]:
        """Standard operators only."""
        del kind, target
        return {}

    def refusal(self, kind: AttentionKind, target: Target) -> str | None:
        """Not where some keys do not count, nor without If."""
        flat = "the graph may hold no If (--inline): OpenVINO 2026.4 gave wrong numbers" if target.flat else None
        return cache_refusal(kind) or flat

    def body(self, kind: AttentionKind, target: Target) -> str:
        """The statements, in the ONNX text format."""
        operator = target.opset >= ATTENTION_OPSET and operator_refusal(kind) is None
        few = [f"most = Constant<value_ints = [{BLOCK}]>()", "few = LessOrEqual(length, most)"]
        if kind.biased:
            few = [*HELD, "few = Identity(held)"]
        if not may_tile(target):
            return "\n".join([*SCALE, *_attention(kind, "context", operator=operator)])
        return f"""
  {lines(SCALE)}
  length = Shape<start = 2, end = 3>(q)
  {lines(few)}
  only = Constant<value_ints = [0]>()
  few0 = Squeeze(few, only)
  context = If(few0) <
    then_branch = at_once () => (context_at_once) {{
    {lines(_attention(kind, "context_at_once", operator=operator))}
    }},
    else_branch = by_chunks () => (context_by_chunks) {{
    {lines(_by_chunks(replace(kind, biased=False), operator=operator))}
    }}
  >"""


def _by_chunks(kind: AttentionKind, *, operator: bool) -> list[str]:
    """Statements from the node's inputs to ``context_by_chunks``."""
    found = [
        "zero = Constant<value_ints = [0]>()",
        "one = Constant<value_ints = [1]>()",
        "axis = Constant<value_ints = [2]>()",
        "last_axis = Constant<value_ints = [3]>()",
        f"chunks = Constant<value_ints = [{CHUNKS}]>()",
        f"chunks_less_one = Constant<value_ints = [{CHUNKS - 1}]>()",
        "length_up = Add(length, chunks_less_one)",
        "chunk = Div(length_up, chunks)",
    ]
    for number in range(CHUNKS):
        found += numbered(_chunk(kind, number, operator=operator), number)
    parts = ", ".join(f"out_{number}" for number in range(CHUNKS))
    return [*found, f"context_by_chunks = Concat<axis = 2>({parts})"]


def _chunk(kind: AttentionKind, number: int, *, operator: bool) -> list[str]:
    """Statements that give ``out``, the context of one chunk's queries."""
    found = [
        f"before = Constant<value_ints = [{number}]>()",
        "first_row = Mul(chunk, before)",
        "after_rows = Add(first_row, chunk)",
        "q_part = Slice(q, first_row, after_rows, axis)",
    ]
    held = {}
    if kind.mask == "pairs":
        found.append("mask_part = Slice(mask, first_row, after_rows, axis)")
        held["mask"] = "mask_part"
    if kind.ordered:
        found.append("qpos_part = Slice(qpos, first_row, after_rows, zero)")
    if kind.causal:
        # keys after the chunk's last query are left out
        found += [
            "first_key = Slice(kpos, zero, one)",
            "last_query = ReduceMax(qpos_part)",
            "reach = Sub(last_query, first_key)",
            "reach_up = Add(reach, one)",
            "seen_keys = Max(reach_up, one)",
            "k_seen = Slice(k, zero, seen_keys, axis)",
            "v_seen = Slice(v, zero, seen_keys, axis)",
            "kpos_seen = Slice(kpos, zero, seen_keys, zero)",
        ]
        if kind.mask != "none":
            found.append(f"mask_seen = Slice({held.get('mask', 'mask')}, zero, seen_keys, last_axis)")
            held["mask"] = "mask_seen"
        held |= {name: f"{name}_seen" for name in ("k", "v", "kpos")}
    attended = _attention(kind, "out", operator=operator, q="q_part", qpos="qpos_part")
    return [*found, *named(attended, **held)]


def _attention(kind: AttentionKind, to: str, *, operator: bool, **queries: str) -> list[str]:
    """Statements that give ``to``, the context of the ``queries`` named, or of all."""
    if operator:
        return [*scaled_keys(kind), *by_operator(kind, to, **queries)]
    return [*prepared_keys(kind), *by_products(kind, to, **queries)]
