"""Attention by blocks of queries: a Scan that never holds more than one block's scores.

Each step takes a block of queries, computes its scores against all keys, the position term for just these queries,
softmax and context. Memory grows with the length (block x length), not with its square, and the block stays in the
cache. Standard operators only.

The block is computed in the graph: the fewest blocks of at most 128 queries, all of one size, so that no length pays
for more than a few padded queries. What fits in one block, such as a decoder's step, is computed at once: it would pay
for cutting, padding and joining. (An If costs little around nodes without weights.)
"""

from posexport.lowering.base import add_scores, base_scores, call, drop, multiplied, prepared_keys, probabilities
from posexport.lowering.formula import statements
from posexport.ops.attention import AttentionKind

BLOCK = 128


class Blockwise:
    """The formula, one block of queries at a time."""

    name = "blockwise"
    scans = True

    def refusal(self, kind: AttentionKind) -> str | None:
        """Not for masks over pairs: a block would need its rows of the mask."""
        if kind.mask == "pairs":
            return "the mask has a row for every query; blocks are cut for masks over keys"
        return None

    def body(self, kind: AttentionKind) -> str:
        """The statements, in the ONNX text format."""
        step = ["qs = Mul(qb, s)", *base_scores(kind, q="qb", qs="qs", qpos="pb")]
        added, scored = add_scores(kind, "score", q="qb", qs="qs", qpos="pb")
        dropped, scored = drop(kind, scored, qpos="pb")
        step += [*added, *dropped, *probabilities(kind, scored)]
        if kind.values is None:
            step += multiplied(kind, "out_block", "probs", "v")
        else:
            step += [
                *multiplied(kind, "plain", "probs", "v"),
                f"extra = {call(kind, 'values', qpos='pb')}",
                "out_block = Add(plain, extra)",
            ]
        inside = "\n    ".join(step)
        at_once = "\n    ".join(statements(kind, "context_at_once"))
        return f"""
  zero = Constant<value_ints = [0]>()
  most = Constant<value_ints = [{BLOCK}]>()
  length = Shape<start = 2, end = 3>(q)
  short = LessOrEqual(length, most)
  short0 = Squeeze(short, zero)
  context = If(short0) <
    then_branch = at_once () => (context_at_once) {{
    {at_once}
    }},
    else_branch = by_blocks () => (context_by_blocks) {{
  s1 = Constant<value_float: float = @scale>()
  s = CastLike(s1, q)
  {chr(10).join(prepared_keys(kind))}
  one = Constant<value_ints = [1]>()
  most_less_one = Constant<value_ints = [{BLOCK - 1}]>()
  six = Constant<value_ints = [0, 0, 0, 0, 0, 0]>()
  lead = Shape<start = 0, end = 2>(q)
  size = Shape<start = 3, end = 4>(q)
  out_size = Shape<start = 3, end = 4>(v)
  length_up = Add(length, most_less_one)
  blocks = Div(length_up, most)
  length_over = Add(length, blocks)
  length_even = Sub(length_over, one)
  block = Div(length_even, blocks)
  padded = Mul(blocks, block)
  missing = Sub(padded, length)
  pads = Concat<axis = 0>(six, missing, zero)
  q_padded = Pad(q, pads)
  q_shape = Concat<axis = 0>(lead, blocks, block, size)
  q_split = Reshape(q_padded, q_shape)
  q_blocks = Transpose<perm = [2, 0, 1, 3, 4]>(q_split)
  first = Slice(qpos, zero, one)
  last = Add(first, padded)
  p_shape = Concat<axis = 0>(blocks, block)
  first0 = Squeeze(first, zero)
  last0 = Squeeze(last, zero)
  one0 = Squeeze(one, zero)
  p_all = Range(first0, last0, one0)
  p_blocks = Reshape(p_all, p_shape)
  done = Scan <num_scan_inputs = 2, body = each_block (qb, pb) => (out_block) {{
    {inside}
  }}> (q_blocks, p_blocks)
  joined = Transpose<perm = [1, 2, 0, 3, 4]>(done)
  out_shape = Concat<axis = 0>(lead, padded, out_size)
  all = Reshape(joined, out_shape)
  axis = Constant<value_ints = [2]>()
  context_by_blocks = Slice(all, zero, length, axis)
    }}
  >"""
