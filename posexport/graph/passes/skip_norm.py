"""Residual sum and normalisation as one operator of ONNX Runtime's, with the bias of the linear projection before it.

SkipLayerNormalization and SkipSimplifiedLayerNormalization give the sum too, for the next residual connection.
"""

import onnx_ir as ir

from posexport.base.targets.target import MICROSOFT, Target
from posexport.graph.builder import Builder
from posexport.graph.edits import replace
from posexport.graph.passes.graph_pass import Context, GraphPass, PassResult
from posexport.graph.queries import axis, is_weight, only, producer, sizes, width

_FUSED = {"LayerNormalization": "SkipLayerNormalization", "RMSNormalization": "SkipSimplifiedLayerNormalization"}


class SkipNorm(GraphPass):
    """A residual sum and the normalisation of it as one node.

    Before: ``LayerNormalization(Add(x, Add(MatMul(y, w), bias)), scale, shift)``
    After:  ``com.microsoft::SkipLayerNormalization(MatMul(y, w), x, scale, shift, bias)``

    For CUDA, where it saves a kernel's start and a pass over memory.
    """

    name = "skip-norm"
    description = "residual sum, bias and normalisation as one operator"

    def refusal(self, target: Target) -> str | None:
        return target.needs_microsoft("SkipLayerNormalization")

    def apply(self, model: ir.Model, context: Context) -> PassResult:
        """Apply the pass; the result counts normalisations."""
        norms = [node for node in model.graph if node.op_type in _FUSED and not node.domain]
        refused = []
        for norm in norms:
            add = producer(norm.inputs[0], "Add")
            reason = "it normalises something else than a sum" if add is None else _refusal(norm, add)
            if add is not None and reason is None:
                _fuse(model.graph, norm, add)
            refused.append(reason)
        return PassResult.of(refused)


def _refusal(norm: ir.Node, add: ir.Node) -> str | None:
    channels = width(add.outputs[0])
    weights = norm.inputs[1:]
    if channels is None or axis(norm, -1) != -1:
        return "it normalises over other axes than the last"
    if norm.attributes.get_int("stash_type", 1) != 1:
        return "its mean is not computed in float32"
    if any(output.uses() or output.is_graph_output() for output in norm.outputs[1:]):
        return "its mean or deviation is read too"
    if not _have_one_shape(*add.inputs):
        return "its summands are not both [batch, tokens, channels]"
    if not all(is_weight(weight, 1) and width(weight) == channels for weight in weights if weight is not None):
        return "its scale or shift is not a constant value for every channel"
    least = 2 if norm.op_type == "LayerNormalization" else 1
    return None if sum(weight is not None for weight in weights) >= least else "it has no scale or no shift"


def _fuse(graph: ir.Graph, norm: ir.Node, add: ir.Node) -> None:
    first, second = add.inputs
    # the projection's output comes first, as its bias is added to that
    projected = _without_bias(first) or _without_bias(second)
    if projected is not None and _without_bias(first) is None:
        second = first
    first, bias = projected or (first, None)
    normed, _, _, total = Builder.at(norm).several(
        _FUSED[norm.op_type],
        [""] * 4,
        *(first, second, *norm.inputs[1:], bias),
        domain=MICROSOFT,
        epsilon=norm.attributes.get_float("epsilon", 1e-5),
    )
    fused = normed.producer()
    assert fused is not None
    fused.name = norm.name
    replace(norm.outputs[0], normed)
    for output in fused.outputs[1:3]:
        output.name = ""
    graph.remove(norm, safe=True)
    if add.outputs[0].uses() or add.outputs[0].is_graph_output():
        replace(add.outputs[0], total)
    else:
        fused.resize_outputs(1)


def _have_one_shape(first: ir.Value | None, second: ir.Value | None) -> bool:
    """Values of the same three sizes and the same dtype."""
    shape = sizes(first)
    if first is None or second is None or shape is None or len(shape) != 3:
        return False
    return shape == sizes(second) and first.dtype == second.dtype


def _without_bias(value: ir.Value | None) -> tuple[ir.Value, ir.Value] | None:
    """The output of a linear projection and its bias, where ``value`` is their sum and has one reader."""
    add = producer(value, "Add")
    if add is None or value is None or only(value) is None:
        return None
    for projected, bias in (add.inputs, add.inputs[::-1]):
        if projected and bias and producer(projected, "MatMul") and is_weight(bias, 1) and width(bias) == width(value):
            return projected, bias
    return None
