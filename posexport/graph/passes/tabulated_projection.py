"""Gives relative position projections with constant weights a table of all likely distances.

The table is what `posexport.graph.lowering.waves.tabulated` reads rows of.
"""

from dataclasses import replace

import onnx_ir as ir

from posexport.base.targets.target import Target
from posexport.graph.edits import take_place
from posexport.graph.lowering.waves.tabulated import REACH, Tabulated, table
from posexport.graph.ops.waves import ProjectionSpec
from posexport.graph.passes.graph_pass import Context, GraphPass, PassResult
from posexport.graph.queries import constant, is_weight, producer


class TabulatedProjection(GraphPass):
    """A table of all likely distances for a relative position projection of constant weights.

    Before: ``posexport::ProjectedWaves(distances, frequencies, weight)``
    After:  ``posexport::ProjectedWaves(distances, frequencies, weight, table)``

    One more table in the file for every layer: see `posexport.graph.lowering.waves.tabulated` for cost and gain.
    """

    name = "tabulated-projection"
    description = "relative position projections (W_R R) of constant weights as a table"
    prepares = Tabulated.name

    def refusal(self, target: Target) -> str | None:
        return Tabulated.target_refusal(target)

    def apply(self, model: ir.Model, context: Context) -> PassResult:
        """Apply the pass; the result counts projections."""
        projections = [(node, spec) for node in model.graph if (spec := ProjectionSpec.of(node)) is not None]
        refused = [_add_table(model.graph, node, spec) for node, spec in projections]
        return PassResult.of(refused)


def _add_table(graph: ir.Graph, node: ir.Node, spec: ProjectionSpec) -> str | None:
    """Why the node has no table; None where it has one now."""
    source, frequencies = node.inputs[2], constant(node.inputs[1], most=1 << 20)
    if source is None or source.const_value is None or not is_weight(source, 2) or frequencies is None:
        return "its weight or its frequencies are no constants"
    weight, heads = source.const_value.numpy(), node.attributes["split_heads"].as_ints()[1]
    vectors = table(frequencies, weight, heads, spec.layout).astype(weight.dtype)
    value = ir.val(f"{source.name}_by_distance", const_value=ir.tensor(vectors))
    graph.register_initializer(value)
    tabulated = replace(spec, tabulated=True, bounded=_bounded(node.inputs[0]))
    take_place(tabulated.node({**spec.named_inputs(node), "table": value}, like=node), node)
    return None


def _bounded(distances: ir.Value | None) -> bool:
    """Whether the table has every distance that a call may have."""
    clip = None if distances is None else producer(distances, "Clip")
    bounds = [] if clip is None else [constant(bound) for bound in clip.inputs[1:3]]
    return len(bounds) == 2 and all(bound is not None and abs(int(bound)) <= REACH for bound in bounds)
