"""Attention by ONNX Runtime's GroupQueryAttention, which writes to a cache of fixed size in place and reads it there.

Its own rotation and its own idea of padding (row by row, on the right) are not used: the first would need tables of
every position, the second is wrong for prompts that are padded on the left. What positions and padding add to the
scores is given as its ``attention_bias``. Of several rows it takes several tokens only as a first prompt; a later part
of a prompt goes by the formula there, in the same graph.
"""

from collections.abc import Mapping
from dataclasses import replace

from posexport.lowering.blockwise import lines, named
from posexport.lowering.scores import SCALE, additive, by_products, operator_refusal, prepared_keys
from posexport.lowering.target import MICROSOFT, Target
from posexport.ops.attention import AttentionKind

#: the operator takes heads of a multiple of this
_MULTIPLE = 8
CACHE_OPSET = 24


class GroupQuery:
    """The operator, for causal attention to a cache of fixed size."""

    name = "group-query"
    scans = False
    beaten = ""

    def domains(self, kind: AttentionKind, target: Target) -> Mapping[str, int]:
        """ONNX Runtime's own."""
        del kind, target
        return {MICROSOFT: 1}

    def refusal(self, kind: AttentionKind, target: Target) -> str | None:
        """Not without a cache of fixed size, a term that reads the keys in it, or heads of an odd size."""
        if not kind.cached:
            return "it is for caches of fixed size that the attention writes to itself"
        if kind.scores is not None and "k" in kind.scores.takes:
            return f"{kind.scores.name} reads the keys, which only the operator would hold"
        if kind.head_size is not None and kind.head_size % _MULTIPLE:
            return f"the operator takes heads of a multiple of {_MULTIPLE}, these have {kind.head_size}"
        if target.name == "cuda":
            return "on CUDA the operator has no float32 kernel"
        return operator_refusal(kind) or target.needs_microsoft("GroupQueryAttention")

    def body(self, kind: AttentionKind, target: Target) -> str:
        """The statements, in the ONNX text format."""
        del target
        reads = kind.scores is not None and not kind.biased
        # the operator is causal by itself
        sums, bias = additive(replace(kind, causal=False), q="q", qs="qs", qpos="qpos")
        at_once = [*(["qs = Mul(q, s)"] if reads else []), *sums]
        plain = [
            "k_taken = Slice(k_written, zero, keys, axis)",
            "v_taken = Slice(v_written, zero, keys, axis)",
            *named([*prepared_keys(kind), *by_products(kind, "context_by_formula")], k="k_taken", v="v_taken"),
        ]
        return f"""
  {lines(SCALE)}
  joined = Constant<value_ints = [0, 0, -1]>()
  context, present_k, present_v = If(takes) <
    then_branch = by_operator () => ({_typed("context")}, {_typed("k")}, {_typed("v")}) {{
    {lines(at_once)}
    {lines(_joined("q"))}
    {lines(_joined("k"))}
    {lines(_joined("v"))}
    context_joined, k_by_operator, v_by_operator = {MICROSOFT}.GroupQueryAttention<
      num_heads: int = @heads, kv_num_heads: int = @groups, scale: float = @scale
    >(q_joined, k_joined, v_joined, past_k, past_v, last_keys, key_total, , , , {bias})
    context_lead = Constant<value_ints = [0, 0]>()
    context_heads0 = Constant<value_int: int = @heads>()
    context_heads1 = Constant<value_ints = [1]>()
    context_heads = Reshape(context_heads0, context_heads1)
    context_rest = Constant<value_ints = [-1]>()
    context_shape = Concat<axis = 0>(context_lead, context_heads, context_rest)
    context_first = Reshape(context_joined, context_shape)
    context_by_operator = Transpose<perm = [0, 2, 1, 3]>(context_first)
    }},
    else_branch = by_formula () => (context_by_formula, k_written, v_written) {{
    zero = Constant<value_ints = [0]>()
    one = Constant<value_ints = [1]>()
    axis = Constant<value_ints = [2]>()
    keys = Shape(kpos)
    batch = Shape<start = 0, end = 1>(mask)
    first = Slice(qpos, zero, one)
    first_of_rows = Expand(first, batch)
    k_written = TensorScatter<axis = 2>(past_k, k, first_of_rows)
    v_written = TensorScatter<axis = 2>(past_v, v, first_of_rows)
    {lines(plain)}
    }}
  >"""


def _typed(name: str) -> str:
    """``<name>_by_operator`` with its type, which nothing infers from an operator of this domain."""
    return f"float[{', '.join(f'{name}_axis_{axis}' for axis in range(4))}] {name}_by_operator"


def _joined(name: str) -> list[str]:
    """Statements that give ``<name>_joined``, [B, T, H D], which is what the operator takes."""
    return [
        f"{name}_first = Transpose<perm = [0, 2, 1, 3]>({name})",
        f"{name}_joined = Reshape({name}_first, joined)",
    ]
