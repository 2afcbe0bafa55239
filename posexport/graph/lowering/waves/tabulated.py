"""The relative position projections of all likely distances, as a table in the file.

Without it a call of l tokens projects 2l - 1 distances in every layer, as many products again as two of a layer's
linear projections, and a decode step projects all of its past. With it a layer has 12.6 MB more (768 channels), of
which a call reads the rows of its distances only: the file is mapped into memory, not read.
"""

import numpy as np
import onnx_ir as ir

from posexport.base.targets.target import Target
from posexport.graph.builder import Builder
from posexport.graph.lowering.lowering import Inputs, Lowering
from posexport.graph.lowering.waves.projected import projected
from posexport.graph.ops.operator import Array
from posexport.graph.ops.waves import Layout, ProjectionSpec

#: the greatest distance in a table; calls with greater ones project theirs
REACH = 2048


class Tabulated(Lowering[ProjectionSpec]):
    """Rows of the table, where it has all of a call's distances."""

    name = "tabulated"

    def refusal(self, spec: ProjectionSpec, target: Target) -> str | None:
        """For nodes that `posexport.graph.passes.tabulated_projection` gave a table."""
        if spec.tabulated:
            return None
        return self.target_refusal(target) or "its weight or its frequencies are no constants"

    @staticmethod
    def target_refusal(target: Target) -> str | None:
        """Why no graph for ``target`` has tables."""
        if target.flat or not target.microsoft:
            return "a table makes the file larger; use --target cpu"
        return "choosing between table and products would wait for the device" if target.waits_to_branch else None

    def build(self, g: Builder, spec: ProjectionSpec, x: Inputs, target: Target) -> ir.Value:
        rows = g.Add(x["distances"], [REACH])
        if spec.bounded:
            return g.Gather(x["table"], rows, axis=1)
        within = g.LessOrEqual(g.ReduceMax(g.Abs(x["distances"]), keepdims=1), [REACH])
        return g.if_(
            g.scalar(within),
            lambda: g.Gather(x["table"], rows, axis=1),
            lambda: projected(g, spec, x),
            branches=("of_table", "of_products"),
            name="vectors",
        )


def table(frequencies: Array, weight: Array, heads: int, layout: Layout) -> Array:
    """[H, 2 `REACH` + 1, D]: the projections of all distances from -`REACH` up, float64 rounded once."""
    angle = np.outer(np.arange(-REACH, REACH + 1), frequencies.astype(np.float64))
    both = (np.sin(angle), np.cos(angle))
    waves = np.stack(both, -1).reshape(len(angle), -1) if layout == "interleaved" else np.concatenate(both, -1)
    rows = waves[:, : weight.shape[1]] @ weight.astype(np.float64).T
    return np.ascontiguousarray(rows.reshape(len(angle), heads, -1).transpose(1, 0, 2))
