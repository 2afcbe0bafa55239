"""Attention to the first places of a cache of fixed size, without terms.

Copying these places out of the cache costs a step more than its arithmetic: where at least half of the places are
taken, all are attended to and the free ones masked; otherwise they are copied, so that a step costs what is taken, not
what there is room for.
"""

from collections.abc import Mapping

from posexport.lowering.scores import SCALE, by_products, prepared_keys
from posexport.lowering.target import Target
from posexport.lowering.text import lines, named
from posexport.ops.attention import AttentionKind


class Static:
    """The formula, over the taken places or over all of them."""

    name = "static"
    cuts = False
    joins = False
    beaten = ""

    def domains(self, kind: AttentionKind, target: Target) -> Mapping[str, int]:
        """Standard operators only."""
        del kind, target
        return {}

    def refusal(self, kind: AttentionKind, target: Target) -> str | None:
        """For caches of fixed size alone."""
        del target
        return None if kind.static else "keys and values do not stand in a cache of fixed size"

    def body(self, kind: AttentionKind, target: Target) -> str:
        """The statements, in the ONNX text format."""
        del target
        some, every = (
            [*SCALE, *prepared_keys(kind), *by_products(kind, to)] for to in ("context_of_taken", "context_of_all")
        )
        some = named(some, k="k_taken", v="v_taken")
        every = named(every, mask="mask_of_all", kpos="kpos_of_all")
        return f"""
  zero = Constant<value_ints = [0]>()
  axis = Constant<value_ints = [2]>()
  taken = Shape(kpos)
  places = Shape<start = 2, end = 3>(k)
  free = Sub(places, taken)
  few = Less(taken, free)
  few0 = Squeeze(few, zero)
  context = If(few0) <
    then_branch = of_taken () => (context_of_taken) {{
    k_taken = Slice(k, zero, taken, axis)
    v_taken = Slice(v, zero, taken, axis)
    {lines(some)}
    }},
    else_branch = of_all () => (context_of_all) {{
    seven = Constant<value_ints = [0, 0, 0, 0, 0, 0, 0]>()
    pads = Concat<axis = 0>(seven, free)
    mask_of_all = Pad(mask, pads)
    start = Constant<value_int = 0>()
    one = Constant<value_int = 1>()
    places0 = Squeeze(places, zero)
    kpos_of_all = Range(start, places0, one)
    {lines(every)}
    }}
  >"""
