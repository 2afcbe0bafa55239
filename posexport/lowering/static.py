"""Attention to the used slots of a static KV cache, without position terms.

Copying these slots out of the cache costs a decode step more than its arithmetic: where at least half of the capacity
is used, a call of few tokens attends to the whole capacity and drops the unused slots' scores and values; all other
calls copy the used slots, so that a step costs what is used, not what there is room for.
"""

from collections.abc import Mapping

from posexport.lowering.scores import SCALE, added, by_products, multiplied, prepared_keys, probabilities
from posexport.lowering.slots import used_context, used_scores
from posexport.lowering.text import lines, named
from posexport.ops.attention import AttentionKind
from posexport.targets.target import Target

#: more new tokens than these have more scores to copy than there are keys and values
_FEW_TOKENS = 16


class Static:
    """The formula, over copies of the used slots or over the whole capacity."""

    name = "static"
    cuts = False
    joins = False
    beaten = ""

    def domains(self, kind: AttentionKind, target: Target) -> Mapping[str, int]:
        """Standard operators only."""
        del kind, target
        return {}

    def refusal(self, kind: AttentionKind, target: Target) -> str | None:
        """For static KV caches alone."""
        del target
        return None if kind.static else "keys and values do not stand in a cache of fixed size"

    def body(self, kind: AttentionKind, target: Target) -> str:
        """The statements, in the ONNX text format."""
        copied = [*SCALE, *prepared_keys(kind), *by_products(kind, "context_of_copies")]
        copied = named(copied, k="k_used", v="v_used")
        return f"""
  zero = Constant<value_ints = [0]>()
  axis = Constant<value_ints = [2]>()
  used = Shape(kpos)
  capacity = Shape<start = 2, end = 3>(k)
  unused = Sub(capacity, used)
  mostly_unused = Less(used, unused)
  tokens = Shape(qpos)
  few_tokens = Constant<value_ints = [{_FEW_TOKENS}]>()
  many_tokens = Less(few_tokens, tokens)
  copies = Or(mostly_unused, many_tokens)
  copies0 = Squeeze(copies, zero)
  context = If(copies0) <
    then_branch = of_copies () => (context_of_copies) {{
    k_used = Slice(k, zero, used, axis)
    v_used = Slice(v, zero, used, axis)
    {lines(copied)}
    }},
    else_branch = of_capacity () => (context_of_capacity) {{
    {lines(_over_capacity(kind, copies_values=target.waits_to_branch))}
    }}
  >"""


def _over_capacity(kind: AttentionKind, *, copies_values: bool) -> list[str]:
    """Statements that give ``context_of_capacity`` without a copy of the cache.

    ``copies_values``: used values are copied nevertheless. On CUDA that is quick, and the host would have to wait for
    the answer whether the context holds NaN.
    """
    sums, score = added(kind, "score", q="q", qs="qs", qpos="qpos")

    def product(to: str, probs: str, v: str) -> list[str]:
        return multiplied(kind, to, probs, v)

    if copies_values:
        context = ["v_used = Slice(v, zero, used, axis)", *product("context_of_capacity", "probs", "v_used")]
    else:
        context = used_context(
            "context_of_capacity", probs="probs", v="v", used="used", unused="unused", axes=4, product=product
        )
    return [
        *SCALE,
        *prepared_keys(kind),
        "qs = Mul(q, s)",
        *multiplied(kind, "score_of_slots", "qs", "kt"),
        *used_scores("score", "score_of_slots", "used"),
        *sums,
        *probabilities(kind, score),
        *context,
    ]
