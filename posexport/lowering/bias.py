"""What positions, order and padding add to the scores, computed once for all layers that share it.

A bias of T5's kind costs a pass over all pairs in every layer, unless it stands ready and the product of queries and
keys starts from it. It is held as long as it is small: all of ``[B, H, T, S]`` up to `MOST` numbers, and for order and
padding alone, which every block can cheaply compute, only where attention holds all scores at once anyway.
"""

from collections.abc import Mapping

from posexport.lowering.blocks import BLOCK
from posexport.lowering.moved import first_rows
from posexport.lowering.scores import additive
from posexport.lowering.text import lines
from posexport.ops.attention import BiasKind
from posexport.ops.skew import CHUNK
from posexport.targets.target import Target

#: numbers of a bias that is held for all layers, 64 MB of float32: beyond that a fresh process is faster by blocks, but
#: for a few queries, such as a step of a large batch, which are not worth cutting
MOST = 1 << 24
#: pairs of all heads up to which all scores are computed at once, without a term that has to be computed for it
AT_ONCE = 1 << 22
#: statements that give ``held``, bool [1]: a bias stands ready for all pairs, [B or 1, H or 1, T, S]
HELD = [
    "bias_shape = Shape(bias)",
    "bias_axes = Shape(bias_shape)",
    "axes_of_all = Constant<value_ints = [4]>()",
    "held = Equal(bias_axes, axes_of_all)",
]


class SharedBias:
    """One value for many layers; where it would be too large, if the attention that takes it can do without, less.

    Of a term of distances alone that is the rows of the first queries (`posexport.lowering.moved`), else nothing.
    """

    name = "shared"
    cuts = False
    joins = False
    beaten = ""

    def __init__(self, *, limited: bool) -> None:
        self.limited = limited

    def domains(self, kind: BiasKind, target: Target) -> Mapping[str, int]:
        """Standard operators only."""
        del kind, target
        return {}

    def refusal(self, kind: BiasKind, target: Target) -> str | None:
        """Applies to every kind."""
        del kind, target
        return None

    def body(self, kind: BiasKind, target: Target) -> str:
        """The statements, in the ONNX text format."""
        del target
        like = "mask" if kind.of.mask != "none" else f"scores_{kind.of.scores.own[0]}" if kind.of.scores else "kpos"
        sums, found = additive(kind.of, q="", qs="", qpos="qpos", like=like)
        scale = ["s1 = Constant<value_float: float = @scale>()", f"s = CastLike(s1, {like})"]
        every = [*(scale if kind.of.scores and kind.of.scores.scaled else []), *sums]
        if not self.limited:
            return "\n".join([*every, f"bias = Identity({found})"])
        batch = "Shape<start = 0, end = 1>(mask)" if kind.of.mask != "none" else "Constant<value_ints = [1]>()"
        nothing = ["nothing1 = ConstantOfShape(zero)", f"bias_of_some = CastLike(nothing1, {like})"]
        some = [*first_rows(kind.of), "bias_of_some = Identity(first_rows)"] if kind.of.shifts else nothing
        one_block = [
            f"block = Constant<value_ints = [{BLOCK}]>()",
            "one_block = LessOrEqual(queries, block)",
            "fits = And(small, one_block)",
        ]
        fits = one_block if kind.of.causal else ["fits = Identity(small)"]
        return f"""
  batch = {batch}
  heads = Constant<value_int: int = @heads>()
  queries = Shape(qpos)
  keys = Shape(kpos)
  rows = Mul(batch, heads)
  pairs = Mul(queries, keys)
  numbers = Mul(rows, pairs)
  most = Constant<value_ints = [{MOST if kind.of.scores else AT_ONCE}]>()
  few_numbers = LessOrEqual(numbers, most)
  chunk = Constant<value_ints = [{CHUNK}]>()
  few_queries = LessOrEqual(queries, chunk)
  small = Or(few_numbers, few_queries)
  {lines(fits)}
  zero = Constant<value_ints = [0]>()
  fits0 = Squeeze(fits, zero)
  bias = If(fits0) <
    then_branch = once () => (bias_of_all) {{
    {lines(every)}
    bias_of_all = Identity({found})
    }},
    else_branch = by_block () => (bias_of_some) {{
    {lines(some)}
    }}
  >"""
