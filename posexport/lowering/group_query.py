"""Attention by ONNX Runtime's GroupQueryAttention, which writes to a cache of fixed size in place and reads it there.

Its own rotation and its own idea of padding (row by row, on the right) are not used: the first would need tables of
every position, the second is wrong for prompts that are padded on the left. What positions and padding add to the
scores is given as its ``attention_bias``. Of several rows it takes several tokens only as a first prompt; a later part
of a prompt goes by the formula there, in the same graph.

One new token, behind a cache that is mostly taken, goes by `posexport.lowering.step`.
"""

from collections.abc import Mapping
from dataclasses import replace

from posexport.lowering.heads import around, side_by_side
from posexport.lowering.scores import SCALE, by_products, operator_refusal, prepared_keys, read_apart, summands
from posexport.lowering.step import step
from posexport.lowering.text import lines, named
from posexport.ops.attention import AttentionKind
from posexport.targets.target import MICROSOFT, Target

#: the operator takes heads of a multiple of this
_MULTIPLE = 8
CACHE_OPSET = 24


class GroupQuery:
    """The operator, for causal attention to a cache of fixed size."""

    name = "group-query"
    cuts = False
    joins = True
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
        kernel = target.needs_kernel("GroupQueryAttention", MICROSOFT)
        return kernel or operator_refusal(kind) or target.needs_microsoft("GroupQueryAttention")

    def body(self, kind: AttentionKind, target: Target) -> str:
        """The statements, in the ONNX text format."""
        del target
        # the operator is causal by itself
        sums, bias = summands(replace(kind, causal=False))
        given = [*read_apart(kind), *sums]
        taken = {name: name if kind.joined else f"{name}_joined" for name in "qkv"}
        gives = "context_by_operator" if kind.joined else "context_joined"
        at_once = [
            *given,
            *(line for name, to in taken.items() if name != to for line in side_by_side(name, to)),
            f"""{gives}, k_by_operator, v_by_operator = {MICROSOFT}.GroupQueryAttention<
      num_heads: int = @heads, kv_num_heads: int = @groups, scale: float = @scale
    >({", ".join(taken.values())}, past_k, past_v, last_keys, key_total, , , , {bias})""",
            *([] if kind.joined else _apart()),
        ]
        inner = kind.apart
        plain = [
            "zero = Constant<value_ints = [0]>()",
            "axis = Constant<value_ints = [2]>()",
            "keys = Shape(kpos)",
            "k_written = TensorScatter<axis = 2>(past_k, k, write_at)",
            "v_written = TensorScatter<axis = 2>(past_v, v, write_at)",
            "k_taken = Slice(k_written, zero, keys, axis)",
            "v_taken = Slice(v_written, zero, keys, axis)",
            *named([*prepared_keys(inner), *by_products(inner, "context_by_formula")], k="k_taken", v="v_taken"),
        ]
        if kind.joined:
            plain = around(kind.heads_of, plain, "context_by_formula")
        axes = 3 if kind.joined else 4
        operator_gives = [_typed("context_by_operator", axes), _typed("k_by_operator"), _typed("v_by_operator")]
        return f"""
  {lines(SCALE)}
  context, present_k, present_v = If(step) <
    then_branch = of_step () => ({_typed("context_of_step", axes)}, k_after_step, v_after_step) {{
    {lines(step(kind, given, bias))}
    }},
    else_branch = of_others () => (context_of_others, k_of_others, v_of_others) {{
    context_of_others, k_of_others, v_of_others = If(takes) <
      then_branch = by_operator () => ({", ".join(operator_gives)}) {{
      {lines(at_once)}
      }},
      else_branch = by_formula () => (context_by_formula, k_written, v_written) {{
      {lines(plain)}
      }}
    >
    }}
  >"""


def _typed(value: str, axes: int = 4) -> str:
    """``value`` with its type, which nothing infers from operators of this domain."""
    return f"float[{', '.join(f'{value}_axis_{axis}' for axis in range(axes))}] {value}"


def _apart() -> list[str]:
    """Statements that take the context's heads apart."""
    return [
        "context_lead = Constant<value_ints = [0, 0]>()",
        "context_heads0 = Constant<value_int: int = @heads>()",
        "context_heads1 = Constant<value_ints = [1]>()",
        "context_heads = Reshape(context_heads0, context_heads1)",
        "context_rest = Constant<value_ints = [-1]>()",
        "context_shape = Concat<axis = 0>(context_lead, context_heads, context_rest)",
        "context_first = Reshape(context_joined, context_shape)",
        "context_by_operator = Transpose<perm = [0, 2, 1, 3]>(context_first)",
    ]
