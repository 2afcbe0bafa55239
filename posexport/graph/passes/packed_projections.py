"""Fuses linear projections that share an input (Q/K/V, gate/up) into one MatMul (and one Add) followed by Split.

The weights are concatenated lazily, while the file is written, so that memory never holds a second copy of all.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from posexport.base.targets.target import Target
from posexport.graph.builder import Builder
from posexport.graph.edits import initializer, replace
from posexport.graph.passes.graph_pass import Context, GraphPass, PassResult
from posexport.graph.queries import PACKED_FROM, is_weight, names_of, only, stays_float, width
from posexport.graph.transposed import beside


@dataclass(frozen=True)
class Projection:
    """A linear projection: a MatMul with a constant weight, and an optional Add of a bias."""

    product: ir.Node
    weight: ir.Value
    add: ir.Node | None
    bias: ir.Value | None

    @property
    def nodes(self) -> list[ir.Node]:
        return [node for node in (self.add, self.product) if node is not None]

    @property
    def output(self) -> ir.Value:
        return self.nodes[0].outputs[0]

    @property
    def channels(self) -> int:
        size = width(self.weight)
        assert size is not None
        return size


#: weights and biases of a group by identity -> the packed weight and bias
_Packed = dict[tuple[int, ...], tuple[ir.Value, ir.Value | None]]


class PackedProjections(GraphPass):
    """Fuse linear projections with the same input.

    Before: ``MatMul(x, w_q), MatMul(x, w_k), MatMul(x, w_v)``
    After:  ``Split(MatMul(x, w_qkv))``

    Pays only where launching a MatMul costs more than a Split: in a decode step. Of two projections, such as gate and
    up, the Split costs a step what one MatMul fewer saves, and a prefill a copy.
    """

    name = "packed-projections"
    description = "linear projections of the same input as one MatMul and a Split"

    def why_not_preferred(self, target: Target) -> str | None:
        """Measured with onnxruntime 1.31 on two cores at 768 channels; not measured on CUDA."""
        if target.provider is None:
            return "a portable graph keeps the weights as the source has them, each by its name"
        if (reason := super().why_not_preferred(target)) or target.steps:
            return reason
        return "on the CPU it saves time at one token only; from 128 on its Split costs 3 to 5% of the products"

    def apply(self, model: ir.Model, context: Context) -> PassResult:
        """Apply the pass; the result counts groups of projections."""
        by_input: dict[tuple[ir.Value, bool], list[Projection]] = defaultdict(list)
        for node in model.graph:
            linear = projection(node)
            if linear is not None and node.inputs[0] is not None:
                # quantized and float projections stay apart
                by_input[node.inputs[0], stays_float(names_of(linear.weight), context.target.keep_float)].append(linear)
        groups = [group for group in by_input.values() if len(group) > 1]
        group_of = {id(node): group for group in groups for linear in group for node in linear.nodes}
        packed: _Packed = {}
        least = 3 if context.target.steps else 2
        refused = [
            "a Split costs a decode step what one MatMul fewer saves"
            if len(group) < least
            else _refusal(group, group_of)
            for group in groups
        ]
        for group, reason in zip(groups, refused, strict=True):
            if reason is None:
                _pack(model.graph, group, packed)
        return PassResult.of(refused)


def projection(node: ir.Node | None) -> Projection | None:
    """The projection that starts with ``node``; None if it is no MatMul with a weight."""
    if node is None or node.op_type != "MatMul" or node.domain or not is_weight(node.inputs[1], 2):
        return None
    weight = node.inputs[1]
    assert weight is not None
    add = only(node.outputs[0])
    if add is not None and add.op_type == "Add" and not add.domain:
        bias = next((value for value in add.inputs if value is not node.outputs[0]), None)
        if bias is not None and is_weight(bias, 1) and width(bias) == width(weight):
            return Projection(node, weight, add, bias)
    return Projection(node, weight, None, None)


def _refusal(group: Sequence[Projection], group_of: dict[int, list[Projection]]) -> str | None:
    """The reason not to fuse a group, or None.

    All readers of a weight must be in groups of the same weights: else the file would store the weight twice.
    """
    key = _key(group)
    for value in (value for linear in group for value in (linear.weight, linear.bias) if value is not None):
        readers = [group_of.get(id(user)) for user, _ in value.uses()]
        if any(other is None or _key(other) != key for other in readers):
            return "a weight is read elsewhere too and would be stored twice"
    return None if len({linear.weight.dtype for linear in group}) == 1 else "the weights have several dtypes"


def _key(group: Sequence[Projection]) -> tuple[int, ...]:
    return tuple(id(value) for linear in group for value in (linear.weight, linear.bias))


def _pack(graph: ir.Graph, group: Sequence[Projection], packed: _Packed) -> None:
    key = _key(group)
    if key not in packed:
        packed[key] = (_packed_weight(graph, group), _packed_bias(graph, group))
    weight, bias = packed[key]
    first = group[0].product
    g = Builder.at(first, name=f"{group[0].output.name}_packed")
    product = g.MatMul(first.inputs[0], weight)
    whole = product if bias is None else g.Add(product, bias)
    parts = g.several("Split", [""] * len(group), whole, [linear.channels for linear in group], axis=-1)
    for linear, output in zip(group, parts, strict=True):
        replace(linear.output, output)
        graph.remove(linear.nodes, safe=True)


def _packed_weight(graph: ir.Graph, group: Sequence[Projection]) -> ir.Value:
    weights = [linear.weight.const_value for linear in group if linear.weight.const_value is not None]
    rows = weights[0].shape[0]
    assert isinstance(rows, int)
    shape = ir.Shape([rows, sum(linear.channels for linear in group)])
    packed = initializer(graph, f"{group[0].weight.name}_packed", _concatenated(weights, shape))
    names = [name for linear in group for name in names_of(linear.weight)]
    packed.metadata_props[PACKED_FROM] = repr(names)
    return packed


def _packed_bias(graph: ir.Graph, group: Sequence[Projection]) -> ir.Value | None:
    """The concatenated biases, with zeros for a projection without bias; None if no projection has one."""
    tensors = [None if linear.bias is None else linear.bias.const_value for linear in group]
    dtype = next((tensor.dtype for tensor in tensors if tensor is not None), None)
    if dtype is None:
        return None
    biases = [
        ir.tensor(np.zeros(linear.channels, dtype.numpy())) if tensor is None else tensor
        for tensor, linear in zip(tensors, group, strict=True)
    ]
    shape = ir.Shape([sum(linear.channels for linear in group)])
    return initializer(graph, f"{group[0].output.name}_bias_packed", _concatenated(biases, shape))


def _concatenated(tensors: Sequence[ir.TensorProtocol], shape: ir.Shape) -> ir.LazyTensor:
    """Lazy concatenation along the last axis, computed at each read and not cached."""

    def concatenate() -> ir.TensorProtocol:
        return ir.tensor(beside([np.asarray(tensor.numpy()) for tensor in tensors]))

    return ir.LazyTensor(concatenate, tensors[0].dtype, shape)
