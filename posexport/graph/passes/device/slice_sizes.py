"""How many elements a Slice keeps, by its bounds."""

import onnx_ir as ir

from posexport.graph.builder import Builder
from posexport.graph.ops.operator import DOMAIN
from posexport.graph.passes.device.known_values import few_numbers
from posexport.graph.passes.graph_pass import Context, GraphPass, PassResult
from posexport.graph.queries import producer


class SliceSizes(GraphPass):
    """The size of a Slice is its end minus its start, which all layers have in common.

    Before: ``Shape(Slice(x, start, end))``
    After:  ``Sub(end, start)``

    On a device each of the small nodes that follow is a kernel: in this form they are computed once. Left: bounds that
    may be outside of the sliced value.
    """

    name = "slice-sizes"
    description = "sizes of what a Slice keeps from its bounds, once for all layers"
    phase = "device"

    def concerns(self, context: Context) -> bool:
        return context.target.waits_to_branch

    def apply(self, model: ir.Model, context: Context) -> PassResult:
        """Apply the pass; the result counts sizes."""
        ours = [function for function in model.functions.values() if function.domain == DOMAIN]
        return PassResult(sum(_rewrite(function, model.opset_imports[""]) for function in ours))


def _rewrite(function: ir.Function, opset: int) -> int:
    changed = 0
    for node in list(function):
        sliced = producer(node.inputs[0], "Slice") if node.op_type == "Shape" and not node.domain else None
        if sliced is not None and node.attributes.get_int("start", 0) == _axis(sliced) and len(node.attributes) == 1:
            start, end = sliced.inputs[1:3]
            if start is not None and end is not None and _ordered(start, end):
                g = Builder.at(node, opset=opset)
                ir.convenience.replace_all_uses_with(node.outputs[0], g.Sub(end, start))
                function.remove(node, safe=True)
                changed += 1
    return changed


def _axis(node: ir.Node) -> int | None:
    """The one axis of a Slice; None for several."""
    axes = few_numbers(node.inputs[3]) if len(node.inputs) == 4 else None
    return int(axes.reshape(())) if axes is not None and axes.size == 1 else None


def _ordered(start: ir.Value, end: ir.Value) -> bool:
    """Whether the bounds are ``start = Max(.., 0)`` and ``end = Min(Max(.., start + 1), keys)``: within the keys."""
    least, most = producer(start, "Max"), producer(end, "Min")
    behind = None if most is None else producer(most.inputs[0], "Max")
    more = None if behind is None else producer(behind.inputs[1], "Add")
    if least is None or more is None or more.inputs[0] is not start:
        return False
    return [few_numbers(value) for value in (least.inputs[1], more.inputs[1])] == [0, 1]
