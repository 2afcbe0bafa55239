"""A sum of two values and its normalisation as one operator of ONNX Runtime's, with the bias of the map before it.

SkipLayerNormalization and SkipSimplifiedLayerNormalization give the sum too, for the next residual connection.
"""

import onnx_ir as ir

from posexport.graph.edits import put, replace
from posexport.graph.queries import axis, is_weight, only, producer, sizes, width
from posexport.targets.target import MICROSOFT, Target

_FUSED = {"LayerNormalization": "SkipLayerNormalization", "RMSNormalization": "SkipSimplifiedLayerNormalization"}


class SkipNorm:
    """For CUDA, where it saves a kernel's start and a pass over memory."""

    name = "skip-norm"

    def refusal(self, target: Target) -> str | None:
        """They are ONNX Runtime's own operators."""
        return target.needs_microsoft("SkipLayerNormalization")

    def beaten(self, target: Target) -> str | None:
        """Where the provider's kernel is slow."""
        return target.unprofitable(self.name)

    def apply(self, model: ir.Model, target: Target) -> int:
        """How many."""
        del target
        return sum(_fuse(model.graph, node) for node in list(model.graph) if node.op_type in _FUSED and not node.domain)


def _fuse(graph: ir.Graph, norm: ir.Node) -> bool:
    add = producer(norm.inputs[0], "Add")
    channels = width(norm.inputs[0])
    scale, shift = norm.inputs[1], norm.inputs[2] if len(norm.inputs) > 2 else None
    if (
        add is None
        or channels is None
        or axis(norm, -1) != -1
        or norm.attributes.get_int("stash_type", 1) != 1
        or any(output.uses() or output.is_graph_output() for output in norm.outputs[1:])
        or not all(value is not None for value in add.inputs)
        or not _alike(*(value for value in add.inputs if value is not None))
        or not all(weight is None or (is_weight(weight, 1) and width(weight) == channels) for weight in (scale, shift))
        or scale is None
        or (norm.op_type == "LayerNormalization" and shift is None)
    ):
        return False
    # the output of the map comes first, as its bias is added to that
    first, second = add.inputs
    with_bias = _bias(first, channels)
    if with_bias is None and _bias(second, channels) is not None:
        first, second = second, first
        with_bias = _bias(first, channels)
    bias = None
    if with_bias is not None:
        first, bias = with_bias
    shifts = [shift] if norm.op_type == "LayerNormalization" else []
    inputs = [first, second, scale, *shifts, bias]
    epsilon = norm.attributes.get_float("epsilon", 1e-5)
    fused = ir.node(
        _FUSED[norm.op_type],
        inputs if bias is not None else inputs[:-1],
        {"epsilon": epsilon},
        domain=MICROSOFT,
        num_outputs=4,
        name=norm.name,
    )
    put(fused, norm, (norm,))
    made, total = fused.outputs[0], fused.outputs[3]
    sums = add.outputs[0]
    replace(norm.outputs[0], made)
    for output in fused.outputs[1:3]:
        output.name = ""
    graph.remove(norm, safe=True)
    if sums.uses() or sums.is_graph_output():
        replace(sums, total)
    else:
        fused.resize_outputs(1)
    return True


def _alike(one: ir.Value, other: ir.Value) -> bool:
    """Float values of three axes of the same sizes."""
    known = sizes(one)
    return known is not None and len(known) == 3 and known == sizes(other) and one.dtype == other.dtype


def _bias(value: ir.Value | None, channels: int) -> tuple[ir.Value, ir.Value] | None:
    """The output of a map and its bias, of which ``value`` is the sum and nothing else reads it."""
    add = producer(value, "Add")
    if add is None or value is None or only(value) is None:
        return None
    for mapped, bias in (add.inputs, add.inputs[::-1]):
        if producer(mapped, "MatMul") and is_weight(bias, 1) and width(bias) == channels:
            assert mapped is not None
            assert bias is not None
            return mapped, bias
    return None
