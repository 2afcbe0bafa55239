"""How many elements a Slice keeps, by its bounds: the same in all layers, so that what follows is computed once.

For targets whose provider computes on a device, where each of these small nodes is a kernel.
"""

import onnx_ir as ir

from posexport.export.known_values import few_numbers
from posexport.graph.builder import Builder
from posexport.graph.queries import producer
from posexport.ops.operator import DOMAIN
from posexport.targets.target import Target


def settle(model: ir.Model, target: Target) -> None:
    """Rewrite the functions of our domain."""
    if not target.waits_to_branch:
        return
    for function in model.functions.values():
        for node in list(function) if function.domain == DOMAIN else ():
            kept = producer(node.inputs[0], "Slice") if node.op_type == "Shape" and not node.domain else None
            if kept is not None and node.attributes.get_int("start", 0) == _axis(kept) and len(node.attributes) == 1:
                start, end = kept.inputs[1:3]
                if start is not None and end is not None and _ordered(start, end):
                    g = Builder.at(node, opset=model.opset_imports[""], initializers=False)
                    ir.convenience.replace_all_uses_with(node.outputs[0], g.Sub(end, start))
                    function.remove(node, safe=True)


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
