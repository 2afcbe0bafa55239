"""Normalisation of groups of channels (Wu and He, arXiv:1803.08494) by an operator that ONNX Runtime has a kernel for.

ONNX Runtime has none for GroupNormalization (1.32) and runs its function: the variance as the mean of squares minus the
square of the mean, which cancels where a group's mean is larger than its deviation. At a mean of 10 deviations float32
is off by 1e-4 (500 values in a group) to 5e-2 (2 values), PyTorch by 1e-6 to 4e-5.

Both kernels and formulas of ONNX Runtime add float32 one after another: at a million values in a group, 14 seconds of
sound in Moonshine's, the deviation is off by 1e-5, PyTorch's by 1e-7. Groups of several channels of a sequence are
therefore averaged over time, then over channels.

On CUDA InstanceNormalization has a kernel below opset 22 only (1.31); later ones run on the CPU, and their input and
output are copied.
"""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from posexport.graph.builder import Builder
from posexport.graph.edits import replace
from posexport.graph.passes.graph_pass import Context, GraphPass, PassResult
from posexport.graph.queries import constant, sizes


class GroupNorm(GraphPass):
    """Every group as one channel of InstanceNormalization, whose kernel subtracts the mean before it squares.

    Before: ``GroupNormalization(x [B, C, ..], scale, bias)``
    After:  ``x -> Reshape [B, G, -1] -> InstanceNormalization -> Reshape Shape(x) -> Mul(.., scale) -> Add(.., bias)``

    The tracer writes the same below opset 21. Where the provider has no kernel for it, its formula.
    """

    name = "group-norm"
    description = "GroupNormalization by InstanceNormalization, for which ONNX Runtime has a kernel"
    is_listed_idle = False

    def apply(self, model: ir.Model, context: Context) -> PassResult:
        """Apply the pass; the result counts normalisations."""
        nodes = [node for node in model.graph if node.op_type == "GroupNormalization" and not node.domain]
        has_kernel = context.target.needs_kernel("InstanceNormalization") is None
        refused = [_rewrite(node, has_kernel=has_kernel) for node in nodes]
        traced = [node for node in model.graph if node.op_type == "InstanceNormalization" and not node.domain]
        return PassResult.of([*refused, *(None for node in traced if _of_sequence(node))])


def _rewrite(node: ir.Node, *, has_kernel: bool) -> str | None:
    """Replace ``node``; the reason where it stays."""
    x, scale, bias = node.inputs
    shape = None if x is None else sizes(x)
    if x is None or x.dtype != ir.DataType.FLOAT or shape is None:
        return "it is not float32, or its number of axes is not known"
    groups = node.attributes.get_int("num_groups")
    assert groups is not None
    g = Builder.at(node, like=[node])
    epsilon = node.attributes.get_float("epsilon", 1e-5)
    if has_kernel and groups == shape[1] and len(shape) > len("BC"):  # wav2vec2's first convolution: a group a channel
        result = g.InstanceNormalization(x, scale, bias, epsilon=epsilon)
    else:
        channels_of_group = shape[1] // groups if len(shape) == len("BCT") and isinstance(shape[1], int) else 0
        if channels_of_group:
            rows = g.Reshape(x, [0, groups, channels_of_group, -1])
            normal = _by_formula(g, rows, epsilon, axes=(-1, -2))
        else:
            rows = g.Reshape(x, [0, groups, -1])
            normal = _by_operator(g, rows, groups, epsilon) if has_kernel else _by_formula(g, rows, epsilon)
        channels = [-1, *[1] * (len(shape) - 2)]
        scaled = g.Mul(g.Reshape(normal, g.Shape(x)), g.Reshape(scale, channels))
        result = g.Add(scaled, g.Reshape(bias, channels))
    replace(node.outputs[0], result)
    assert node.graph is not None
    node.graph.remove(node, safe=True)
    return None


def _of_sequence(node: ir.Node) -> bool:
    """Replace what the tracer wrote for groups of several channels of a sequence [B, C, T]; whether it is that."""
    rows, scale, bias = node.inputs
    reshape = None if rows is None else rows.producer()
    x = reshape.inputs[0] if reshape is not None and reshape.op_type == "Reshape" else None
    shape, same = sizes(x), (constant(scale), constant(bias))
    if shape is None or len(shape) != len("BCT") or not isinstance(shape[1], int) or same[0] is None or same[1] is None:
        return False
    groups = len(same[0])
    if groups >= shape[1] or not (same[0] == 1).all() or same[1].any():
        return False
    # rows of x stay rows: a module may also have reshaped x before its InstanceNorm
    assert reshape is not None
    into = constant(reshape.inputs[1])
    if into is None or into.tolist() != [0, groups, -1]:
        return False
    g = Builder.at(node, like=[node])
    grouped = g.Reshape(x, [0, groups, shape[1] // groups, -1])
    normal = _by_formula(g, grouped, node.attributes.get_float("epsilon", 1e-5), axes=(-1, -2))
    replace(node.outputs[0], g.Reshape(normal, [0, groups, -1]))
    assert node.graph is not None
    node.graph.remove(node, safe=True)
    return True


def _by_operator(g: Builder, x: ir.Value, groups: int, epsilon: float) -> ir.Value:
    """``x`` [B, G, S], each group normalised."""
    same = np.ones(groups, np.float32), np.zeros(groups, np.float32)
    return g.InstanceNormalization(x, *same, epsilon=epsilon)


def _by_formula(g: Builder, x: ir.Value, epsilon: float, axes: Sequence[int] = (-1,)) -> ir.Value:
    """As `_by_operator`, of [B, G, S] or [B, G, C / G, T]; the mean is subtracted before anything is squared."""
    centred = g.Sub(x, _mean(g, x, axes))
    variance = _mean(g, g.Mul(centred, centred), axes)
    return g.Div(centred, g.Sqrt(g.Add(variance, np.float32(epsilon))))


def _mean(g: Builder, x: ir.Value, axes: Sequence[int]) -> ir.Value:
    """The mean over ``axes``, one after another."""
    for axis in axes:
        x = g.ReduceMean(x, [axis])
    return x
