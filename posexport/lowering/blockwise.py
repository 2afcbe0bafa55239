"""Attention by blocks of queries: a Scan that never holds more than one block's scores.

Each step takes a block of queries, computes its scores against all keys it can see, the position term for just these
queries, softmax and context. Memory grows with the length (block x length), not with its square, and the block stays in
the cache. Standard operators only; from opset 23 on a step's attention is ai.onnx Attention.

The block is computed in the graph: the fewest blocks of at most 128 queries, all of one size, so that no length pays
for more than a few padded queries. What is small, such as a decoder's step, is computed at once: it would pay for
cutting, padding and joining. (An If costs little around nodes without weights.) A model whose inputs are never longer
than one block gets no blocks: a branch that no input reaches could not be proven.
"""

import re
from collections.abc import Mapping
from dataclasses import replace

from posexport.lowering.bias import AT_ONCE, HELD
from posexport.lowering.blocks import BLOCK, always_tiles, may_tile
from posexport.lowering.heads import apart, around
from posexport.lowering.moved import first_rows, moved, places
from posexport.lowering.scores import (
    SCALE,
    by_operator,
    by_products,
    cache_refusal,
    drops_some,
    heads,
    operator_refusal,
    prepared_keys,
    queries,
    read_apart,
    scaled_keys,
)
from posexport.lowering.text import lines, named
from posexport.ops.attention import AttentionKind
from posexport.ops.operator import DOMAIN, WHOLE, Operator, protos
from posexport.ops.skew import CHUNK
from posexport.targets.target import ATTENTION_OPSET, Target


class Blockwise:
    """The formula, one block of queries at a time."""

    name = "blockwise"
    cuts = True
    joins = True
    beaten = "a Scan goes step by step, which an accelerator does slowly"

    def domains(self, kind: AttentionKind, target: Target) -> Mapping[str, int]:
        """Standard operators only."""
        del kind, target
        return {}

    def refusal(self, kind: AttentionKind, target: Target) -> str | None:
        """Not for masks over pairs: a block would need its rows of the mask."""
        if kind.mask == "pairs":
            return "the mask has a row for every query; blocks are cut for masks over keys"
        return cache_refusal(kind) or ("the graph may hold no Scan (--inline)" if target.flat else None)

    def body(self, kind: AttentionKind, target: Target) -> str:
        """The statements, in the ONNX text format."""
        operator = target.opset >= ATTENTION_OPSET and operator_refusal(kind) is None
        # few queries that share keys: the operator would copy these for every head
        at_once = [*SCALE, *_at_once(kind, operator=operator and not kind.grouped)]
        if not may_tile(target):
            asked = drops_some("mask", "drops") if kind.mask == "keys" else []
            return "\n".join([*asked, *at_once, "context = Identity(context_at_once)"])
        if always_tiles(target) and not kind.biased and _by_length(kind):
            asked = drops_some("mask", "drops") if kind.mask == "keys" else []
            first = ["zero = Constant<value_ints = [0]>()", f"length = {queries(kind)}", *asked]
            tiled = _by_blocks(kind, target, operator=operator)
            return "\n".join([*first, tiled, "context = Identity(context_by_blocks)"])
        return f"""
  zero = Constant<value_ints = [0]>()
  length = {queries(kind)}
  {lines(drops_some("mask", "drops") if kind.mask == "keys" else [])}
  {lines(_is_small(kind))}
  small0 = Squeeze(small, zero)
  context = If(small0) <
    then_branch = at_once () => (context_at_once) {{
    {lines(at_once)}
    }},
    else_branch = by_blocks () => (context_by_blocks) {{
    {_by_blocks(kind, target, operator=operator)}
    }}
  >"""


def _is_small(kind: AttentionKind) -> list[str]:
    """Statements that give ``small``, bool [1]: whether all is computed at once."""
    if kind.biased:
        return [*HELD, "small = Identity(held)"]
    if _by_length(kind):
        return [f"most = Constant<value_ints = [{BLOCK}]>()", "small = LessOrEqual(length, most)"]
    if kind.joined:
        counted = [
            "heads0 = Constant<value_int: int = @heads>()",
            "tokens = Shape<end = 2>(q)",
            "token_count = ReduceProd<keepdims = 1>(tokens)",
            "row_count = Mul(token_count, heads0)",
            "key_count = Shape<start = 1, end = 2>(k)",
        ]
    else:
        counted = [
            "rows = Shape<end = 3>(q)",
            "row_count = ReduceProd<keepdims = 1>(rows)",
            "key_count = Shape<start = 2, end = 3>(k)",
        ]
    return [
        *counted,
        "pairs = Mul(row_count, key_count)",
        f"most = Constant<value_ints = [{AT_ONCE}]>()",
        "small = LessOrEqual(pairs, most)",
    ]


def _by_length(kind: AttentionKind) -> bool:
    """The number of queries decides alone whether all is computed at once."""
    return bool(kind.operators) or kind.causal


def _at_once(kind: AttentionKind, *, operator: bool) -> list[str]:
    if operator:
        # where nothing else is added, the mask is; a pass over few scores costs less than the question does
        drops = "drops" if kind.mask == "keys" and not (kind.scores or kind.causal) else None
        return [*read_apart(kind), *scaled_keys(kind), *by_operator(kind, "context_at_once", drops=drops)]
    inner = kind.apart
    found = [*prepared_keys(inner), *by_products(inner, "context_at_once")]
    return around(kind.heads_of, found, "context_at_once") if kind.joined else found


def _by_blocks(of: AttentionKind, target: Target, *, operator: bool) -> str:
    """Statements from the node's inputs to ``context_by_blocks``."""
    kind = replace(of.apart, biased=False)
    whole = kind.base is None and any(skews(operator) for operator in kind.operators.values())
    held = {name: heads(of, name) for name in ("k", "v")} | {"mask": "mask", "kpos": "kpos"}
    keys, step_kind = apart({name: of.heads_of[name] for name in "kv" if of.joined}), kind
    if whole:
        filled, step_kind = _all_keys(replace(kind, termed=kind.shifts), fills=_fills(target))
        keys += named(filled, k=held["k"], v=held["v"])
        held = {name: f"{name}_all" for name in held}
    outside: list[str] = []
    drops = "drops" if step_kind.mask == "keys" else None
    if drops and whole and not kind.causal and not of.biased and _fills(target):
        drops = None
    elif drops and whole and not kind.causal:
        # so are those that were filled up; where order drops them, it does so alone
        outside, drops = drops_some("mask_all", "drops_or_fills"), "drops_or_fills"
    step: list[str] = []
    if kind.causal:
        # keys that no query of the block can see are left out, in whole chunks
        step = [
            "last_query = ReduceMax<keepdims = 1>(pb)",
            "reach = Sub(last_query, before_first_key)",
            "reach_up = Add(reach, chunk_less_one)",
            "reach_chunks = Div(reach_up, chunk)",
            "reach_whole = Mul(reach_chunks, chunk)",
            "reach_most = Min(reach_whole, key_total)",
            "seen_keys = Max(reach_most, chunk_or_all)",
            f"k_seen = Slice({held['k']}, zero, seen_keys, axis)",
            f"v_seen = Slice({held['v']}, zero, seen_keys, axis)",
            f"kpos_seen = Slice({held['kpos']}, zero, seen_keys, zero)",
            *([f"mask_seen = Slice({held['mask']}, zero, seen_keys, last_axis)"] if step_kind.mask != "none" else []),
        ]
        outside += [
            f"first_key = Slice({held['kpos']}, zero, one)",
            "before_first_key = Sub(first_key, one)",
            f"key_total = Shape({held['kpos']})",
            "chunk_or_all = Min(chunk, key_total)",
        ]
        held = {name: f"{name}_seen" for name in held}
    if step_kind.termed:
        rows = "bias" if of.biased else "first_rows"
        outside += [*([] if of.biased else first_rows(kind)), *places(rows)]
        step += moved(rows, qpos="pb", kpos=held["kpos"])
    inside = scaled_keys(step_kind) if operator else prepared_keys(step_kind)
    block = (by_operator if operator else by_products)(step_kind, "out_block", q="qb", qpos="pb", drops=drops)
    if kind.causal:
        step += named([*inside, *block], **held)
    else:
        outside += named(inside, **held)
        step += named(block, **held)
    if whole:
        names = {operator.name for operator in kind.operators.values() if skews(operator)}
        step = [re.sub(rf"\b{DOMAIN}\.({'|'.join(names)})\(", rf"{DOMAIN}.{WHOLE}\1(", line) for line in step]
    return f"""
  {lines(SCALE)}
  one = Constant<value_ints = [1]>()
  axis = Constant<value_ints = [2]>()
  last_axis = Constant<value_ints = [3]>()
  chunk = Constant<value_ints = [{CHUNK}]>()
  chunk_less_one = Constant<value_ints = [{CHUNK - 1}]>()
  block_most = Constant<value_ints = [{BLOCK}]>()
  block_less_one = Constant<value_ints = [{BLOCK - 1}]>()
  six = Constant<value_ints = [0, 0, 0, 0, 0, 0]>()
  {lines(keys)}
  length_up = Add(length, block_less_one)
  blocks = Div(length_up, block_most)
  blocks_of_chunk = Mul(blocks, chunk)
  length_over = Add(length, blocks_of_chunk)
  length_even = Sub(length_over, one)
  block_chunks = Div(length_even, blocks_of_chunk)
  block = Mul(block_chunks, chunk)
  padded = Mul(blocks, block)
  missing = Sub(padded, length)
  {lines(_cut(of))}
  {lines(_positions() if kind.ordered else [])}
  {lines(outside)}
  done = Scan <num_scan_inputs = {1 + kind.ordered}, body = each_block (qb{", pb" * kind.ordered}) => (out_block) {{
    {lines(step)}
  }}> (q_blocks{", p_blocks" * kind.ordered})
  {lines(_uncut(of))}"""


def _fills(target: Target) -> bool | None:
    """Whether keys of more than one block are filled up to whole chunks, and the mask drops these; None: some are."""
    if target.longest is not None and target.longest == target.shortest:
        return bool(target.longest % CHUNK)
    return True if target.longest is not None and target.longest < BLOCK + CHUNK else None


def _positions() -> list[str]:
    """Statements that give ``p_blocks``, [blocks, block], the positions of each block's queries."""
    return [
        "first = Slice(qpos, zero, one)",
        "last = Add(first, padded)",
        "p_shape = Concat<axis = 0>(blocks, block)",
        "first0 = Squeeze(first, zero)",
        "last0 = Squeeze(last, zero)",
        "one0 = Squeeze(one, zero)",
        "p_all = Range(first0, last0, one0)",
        "p_blocks = Reshape(p_all, p_shape)",
    ]


def _cut(kind: AttentionKind) -> list[str]:
    """Statements that give ``q_blocks``, [blocks, B, H, block, D], and what `_uncut` needs."""
    if kind.joined:
        return [
            "lead = Shape<start = 0, end = 1>(q)",
            "heads1 = Constant<value_int: int = @heads>()",
            "head_count = Unsqueeze(heads1, zero)",
            "rest = Constant<value_ints = [-1]>()",
            "four = Constant<value_ints = [0, 0, 0, 0]>()",
            "pads = Concat<axis = 0>(four, missing, zero)",
            "q_padded = Pad(q, pads)",
            "q_shape = Concat<axis = 0>(lead, blocks, block, head_count, rest)",
            "q_split = Reshape(q_padded, q_shape)",
            "q_blocks = Transpose<perm = [1, 0, 3, 2, 4]>(q_split)",
        ]
    return [
        "lead = Shape<start = 0, end = 2>(q)",
        "size = Shape<start = 3, end = 4>(q)",
        "pads = Concat<axis = 0>(six, missing, zero)",
        "q_padded = Pad(q, pads)",
        "q_shape = Concat<axis = 0>(lead, blocks, block, size)",
        "q_split = Reshape(q_padded, q_shape)",
        "q_blocks = Transpose<perm = [2, 0, 1, 3, 4]>(q_split)",
    ]


def _uncut(kind: AttentionKind) -> list[str]:
    """Statements from ``done``, [blocks, B, H, block, V], to the context."""
    if kind.joined:
        return [
            "joined = Transpose<perm = [1, 0, 3, 2, 4]>(done)",
            "out_shape = Concat<axis = 0>(lead, padded, rest)",
            "all = Reshape(joined, out_shape)",
            "context_by_blocks = Slice(all, zero, length, one)",
        ]
    return [
        "out_size = Shape<start = 3, end = 4>(v)",
        "joined = Transpose<perm = [1, 2, 0, 3, 4]>(done)",
        "out_shape = Concat<axis = 0>(lead, padded, out_size)",
        "all = Reshape(joined, out_shape)",
        "context_by_blocks = Slice(all, zero, length, axis)",
    ]


def skews(operator: Operator) -> bool:
    """The operator's function is faster for queries and keys in whole chunks."""
    return any(proto.name == "Skew" for proto in protos(operator.function, 18))


def _all_keys(kind: AttentionKind, *, fills: bool | None) -> tuple[list[str], AttentionKind]:
    """Statements that fill keys up to whole chunks, which the skew wants; and the kind, which masks what is added.

    Causal ones need no mask for that: what is added stands after every query that counts. Nor do keys of whole chunks,
    which ``fills`` says (`_fills`).
    """
    found = [
        "key_length = Shape(kpos)",
        "key_up = Add(key_length, chunk_less_one)",
        "key_chunks = Div(key_up, chunk)",
        "key_padded = Mul(key_chunks, chunk)",
        "key_missing = Sub(key_padded, key_length)",
        "key_pads = Concat<axis = 0>(six, key_missing, zero)",
        "k_all = Pad(k, key_pads)",
        "v_all = Pad(v, key_pads)",
        "kpos_first = Slice(kpos, zero, one)",
        "kpos_end = Add(kpos_first, key_padded)",
        "kpos_first0 = Squeeze(kpos_first, zero)",
        "kpos_end0 = Squeeze(kpos_end, zero)",
        "kpos_step = Constant<value_int = 1>()",
        "kpos_all = Range(kpos_first0, kpos_end0, kpos_step)",
    ]
    if kind.mask == "none" and (kind.causal or fills is False):
        return found, kind
    found += [
        "filler1 = Constant<value_float: float = @lowest>()",
        "filler = CastLike(filler1, q)",
        "mask_pads = Concat<axis = 0>(six, zero, key_missing)",
    ]
    if kind.mask == "none":
        found += [
            "kept_shape = Concat<axis = 0>(one, one, one, key_length)",
            "kept1 = ConstantOfShape(kept_shape)",
            "kept = CastLike(kept1, q)",
            "mask_all = Pad(kept, mask_pads, filler)",
        ]
    else:
        found.append("mask_all = Pad(mask, mask_pads, filler)")
    return found, replace(kind, mask="keys")
