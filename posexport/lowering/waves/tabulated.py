"""The projected waves of all distances that are likely, as constants that the runtime computes once.

A table of its own for every layer, made when a session begins (constant folding), not stored: 12.6 MB for 768 channels.
Without it a call of l tokens projects 2l - 1 distances in every layer, as many products again as two of a layer's
maps; a decoder's step projects all of its past.
"""

from collections.abc import Mapping

from posexport.lowering.target import Target
from posexport.lowering.text import lines
from posexport.lowering.waves.projected import CONSTANTS, projected
from posexport.ops.waves import WavesKind

#: the greatest distance in a table; calls with greater ones project their own
REACH = 2048


class Tabulated:
    """Rows of the table, where it has all of a call's distances."""

    name = "tabulated"
    scans = False
    joins = False
    beaten = ""

    def domains(self, kind: WavesKind, target: Target) -> Mapping[str, int]:
        """Standard operators only."""
        del kind, target
        return {}

    def refusal(self, kind: WavesKind, target: Target) -> str | None:
        """For ONNX Runtime's CPU provider alone."""
        del kind
        if target.flat or target.name == "portable":
            return "a runtime that does not compute constants once would make the table in every call; use --for cpu"
        return "choosing between table and products would wait for the device" if target.name == "cuda" else None

    def body(self, kind: WavesKind, target: Target) -> str:
        """The statements, in the ONNX text format."""
        del target
        return f"""
  {lines(CONSTANTS)}
  reach = Constant<value_ints = [{REACH}]>()
  least = Constant<value_int = {-REACH}>()
  end = Constant<value_int = {REACH + 1}>()
  step = Constant<value_int = 1>()
  listed = Range(least, end, step)
  {lines(projected(kind, "listed", "table"))}
  far = Abs(distances)
  farthest = ReduceMax<keepdims = 1>(far)
  within = LessOrEqual(farthest, reach)
  within0 = Squeeze(within, start)
  vectors = If(within0) <
    then_branch = of_table () => (of_listed) {{
    row = Add(distances, reach)
    of_listed = Gather<axis = 1>(table, row)
    }},
    else_branch = of_products () => (of_others) {{
    {lines(projected(kind, "distances", "of_others"))}
    }}
  >"""
