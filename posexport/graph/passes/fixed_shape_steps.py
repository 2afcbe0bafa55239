"""The slot of a step's token from the mask's elements, where its width does not tell it.

The attention mask has an element for each past and new token, and the first new slot is the difference of the two
sizes. So every step has other shapes, and cannot be replayed as a CUDA graph. With a mask as wide as the static KV
cache all steps have the same shapes; the index of the mask's last 1 is the token's slot.
"""

import onnx_ir as ir

from posexport.base.spec import CAPACITY, FIXED_SHAPE_STEPS, SEQUENCE, TOTAL
from posexport.graph.builder import Builder
from posexport.graph.lowering.plan import FILLED_SLOTS
from posexport.graph.ops.attention import AttentionSpec
from posexport.graph.passes.graph_pass import Context, GraphPass, PassResult
from posexport.graph.queries import constant, producer


class FixedShapeSteps(GraphPass):
    """Steps whose shapes are all the same.

    Before: ``Add(Range(0, T), Sub(S, T))``, the slots of T new tokens, with a mask of S slots
    After:  ``Add(Range(0, T), start)``, where start is ``S - T``, but for one token and a mask as wide as the cache the
    place of the mask's last 1
    """

    name = "fixed-shape-steps"
    description = "decode steps take a mask as wide as the static KV cache; its last 1 is the slot that is written"
    is_listed_idle = False

    def concerns(self, context: Context) -> bool:
        # other lowerings branch
        captured = context.lowering == FILLED_SLOTS.name and context.target.waits_to_branch
        return captured and any(CAPACITY in spec.axes for spec in context.inputs)

    def apply(self, model: ir.Model, context: Context) -> PassResult:
        """Apply the pass; the result counts sums."""
        graph = model.graph
        attentions = [spec for node in graph if (spec := AttentionSpec.of(node)) is not None and spec.causal]
        if any(spec.cache != "append" for spec in attentions):
            return PassResult(rejected=("attention does not write to the cache itself",))
        if names := sorted({operator.name for spec in attentions for operator in spec.operators.values()}):
            return PassResult(rejected=(f"{names[0]} reads slots on the host",))
        named = {spec.name: value for spec, value in zip(context.inputs, graph.inputs, strict=False)}
        by_role = {spec.role: (named[spec.name], spec.axes) for spec in context.inputs}
        (mask, mask_axes), (tokens, token_axes) = by_role["mask"], by_role["tokens"]
        cache = next(spec for spec in context.inputs if CAPACITY in spec.axes)
        changed = 0
        for past in list(graph):
            total, new = (_size_of(value) for value in past.inputs[:2]) if past.op_type == "Sub" else (None, None)
            if total != (mask, mask_axes.index(TOTAL)) or new != (tokens, token_axes.index(SEQUENCE)):
                continue
            readers = [node for node, _ in past.outputs[0].uses()]
            if not all(_counts_on(node, past.outputs[0]) for node in readers):
                return PassResult(rejected=("the number of past tokens is used for more than the new tokens' slots",))
            start = _start(past, mask, named[cache.name], cache.axes.index(CAPACITY))
            for reader in readers:
                reader.replace_input_with(list(reader.inputs).index(past.outputs[0]), start)
            changed += len(readers)
            model.metadata_props[FIXED_SHAPE_STEPS] = "true"
        return PassResult(changed, () if changed else ("slots do not follow from the width of the mask",))


def _size_of(value: ir.Value | None) -> tuple[ir.Value | None, int | None] | None:
    """The tensor and its axis that a scalar is the size of."""
    shape = None if (squeezed := producer(value, "Squeeze")) is None else producer(squeezed.inputs[0], "Shape")
    return None if shape is None else (shape.inputs[0], shape.attributes.get_int("start", 0))


def _counts_on(node: ir.Node, past: ir.Value) -> bool:
    """Whether it adds ``past`` to 0, 1, 2 ..."""
    operands = [value for value in node.inputs if value is not past]
    counted = producer(operands[0], "Range") if node.op_type == "Add" and len(operands) == 1 else None
    starts = None if counted is None else constant(counted.inputs[0])
    return starts is not None and not starts.any()


def _start(past: ir.Node, mask: ir.Value, cache: ir.Value, slots: int) -> ir.Value:
    """Write the first new slot, from ``past`` or from the elements of ``mask``."""
    total, new = past.inputs
    # after all sizes
    g = Builder.at(past, after=True, name="first_new_slot")
    fixed = g.And(g.Equal(total, g.Squeeze(g.Shape(cache, start=slots, end=slots + 1))), g.Equal(new, 1))
    least = g.Where(fixed, 0, past.outputs[0])
    used = g.Cast(g.Cast(mask, to=ir.DataType.BOOL), to=ir.DataType.INT64)
    last = g.ReduceMax(g.Mul(used, g.Range(1, g.Add(total, 1), 1)), keepdims=0)
    # without a mask of the cache's width the first is the larger one only where the mask ends with 0
    return g.Max(g.Sub(last, new), least)
