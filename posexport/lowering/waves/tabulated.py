"""The projected waves of all distances that are likely, as a table that stands in the file.

Without it a call of l tokens projects 2l - 1 distances in every layer, as many products again as two of a layer's
maps, and a decoder's step projects all of its past. With it a layer has 12.6 MB more (768 channels), of which a call
reads the rows of its own distances only: the file is mapped into memory, not read.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from posexport.graph.edits import take_place
from posexport.graph.queries import constant, is_weight
from posexport.lowering.text import lines
from posexport.lowering.waves.projected import CONSTANTS, projected
from posexport.ops.operator import DOMAIN, Array
from posexport.ops.waves import Layout, WavesKind, kinds
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
        """For nodes that `put` gave a table."""
        if kind.tabulated:
            return None
        return _refusal(target) or "its map or its frequencies are no constants"

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


def put(model: ir.Model, target: Target) -> int:
    """Give nodes with a constant map a table, where the target is served by one; how many."""
    if _refusal(target) is not None:
        return 0
    known, done = kinds(), 0
    for node in list(model.graph):
        kind = known.get(node.op_type) if node.domain == DOMAIN else None
        if kind is None or kind.tabulated:
            continue
        source, frequencies = node.inputs[2], constant(node.inputs[1], most=1 << 20)
        if source is None or source.const_value is None or not is_weight(source, 2) or frequencies is None:
            continue
        weight, heads = source.const_value.numpy(), node.attributes["by_head"].as_ints()[1]
        found = table(frequencies, weight, heads, kind.layout).astype(weight.dtype)
        value = ir.val(f"{source.name}_by_distance", const_value=ir.tensor(found))
        model.graph.register_initializer(value)
        taken = replace(kind, tabulated=True)
        made = ir.node(
            taken.name, [*node.inputs, value], dict(node.attributes), domain=DOMAIN, version=1, name=node.name
        )
        take_place(made, node)
        done += 1
    return done


def table(frequencies: Array, weight: Array, heads: int, layout: Layout) -> Array:
    """[H, 2 `REACH` + 1, D]: the projected waves of all distances from -`REACH` up, float64 rounded once."""
    angle = np.outer(np.arange(-REACH, REACH + 1), frequencies.astype(np.float64))
    both = (np.sin(angle), np.cos(angle))
    waves = np.stack(both, -1).reshape(len(angle), -1) if layout == "interleaved" else np.concatenate(both, -1)
    rows = waves[:, : weight.shape[1]] @ weight.astype(np.float64).T
    return np.ascontiguousarray(rows.reshape(len(angle), heads, -1).transpose(1, 0, 2))


def _refusal(target: Target) -> str | None:
    if target.flat or not target.microsoft:
        return "a table makes the file larger; use --target cpu"
    return "choosing between table and products would wait for the device" if target.waits_to_branch else None
