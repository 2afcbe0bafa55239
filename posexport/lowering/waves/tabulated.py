"""The projected waves of all distances that are likely, as a table that stands in the file.

Without it a call of l tokens projects 2l - 1 distances in every layer, as many products again as two of a layer's
maps, and a decoder's step projects all of its past. With it a layer has 12.6 MB more (768 channels), of which a call
reads the rows of its own distances only: the file is mapped into memory, not read.
"""

from collections.abc import Mapping

import numpy as np

from posexport.lowering.text import lines
from posexport.lowering.waves.projected import CONSTANTS, projected
from posexport.ops.operator import Array
from posexport.ops.waves import Layout, WavesKind
from posexport.targets.target import Target

#: the greatest distance in a table; calls with greater ones project their own
REACH = 2048


class Tabulated:
    """Rows of the table, where it has all of a call's distances."""

    name = "tabulated"
    cuts = False
    joins = False
    beaten = ""

    def domains(self, kind: WavesKind, target: Target) -> Mapping[str, int]:
        """Standard operators only."""
        del kind, target
        return {}

    def refusal(self, kind: WavesKind, target: Target) -> str | None:
        """For nodes that `posexport.passes.tabulated_projection` gave a table."""
        if kind.tabulated:
            return None
        return self.target_refusal(target) or "its weight or its frequencies are no constants"

    @staticmethod
    def target_refusal(target: Target) -> str | None:
        """Why no graph for ``target`` has tables."""
        if target.flat or not target.microsoft:
            return "a table makes the file larger; use --target cpu"
        return "choosing between table and products would wait for the device" if target.waits_to_branch else None

    def body(self, kind: WavesKind, target: Target) -> str:
        """The statements, in the ONNX text format."""
        del target
        return f"""
  {lines(CONSTANTS)}
  reach = Constant<value_ints = [{REACH}]>()
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


def table(frequencies: Array, weight: Array, heads: int, layout: Layout) -> Array:
    """[H, 2 `REACH` + 1, D]: the projected waves of all distances from -`REACH` up, float64 rounded once."""
    angle = np.outer(np.arange(-REACH, REACH + 1), frequencies.astype(np.float64))
    both = (np.sin(angle), np.cos(angle))
    waves = np.stack(both, -1).reshape(len(angle), -1) if layout == "interleaved" else np.concatenate(both, -1)
    rows = waves[:, : weight.shape[1]] @ weight.astype(np.float64).T
    return np.ascontiguousarray(rows.reshape(len(angle), heads, -1).transpose(1, 0, 2))
