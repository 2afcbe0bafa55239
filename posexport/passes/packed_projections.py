"""Fuses linear projections that share an input (Q/K/V, gate/up) into one MatMul (and one Add) followed by Split.

The weights are packed when the file is written, one at a time, so that no second copy of them all is in memory.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from posexport.graph.builder import Builder
from posexport.graph.edits import initializer, replace
from posexport.graph.queries import PACKED_FROM, is_weight, matches, names_of, only, width
from posexport.passes.graph_pass import Context, GraphPass, PassResult
from posexport.targets.target import Target


@dataclass(frozen=True)
class Projection:
    """A MatMul with a constant weight, and the Add of its bias where it has one."""

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
    """One product for several that read the same.

    Before: ``MatMul(x, w_q), MatMul(x, w_k), MatMul(x, w_v)``
    After:  ``Split(MatMul(x, w_qkv))``

    Worth its Split only where starting a product is what costs.
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
        """Counts groups of projections."""
        by_input: dict[tuple[ir.Value, bool], list[Projection]] = defaultdict(list)
        for node in model.graph:
            found = projection(node)
            if found is not None and node.inputs[0] is not None:
                # quantized and float projections stay apart
                by_input[node.inputs[0], matches(names_of(found.weight), context.target.keep_float)].append(found)
        groups = [group for group in by_input.values() if len(group) > 1]
        group_of = {id(node): group for group in groups for each in group for node in each.nodes}
        packed: _Packed = {}
        refused = [_refusal(group, group_of) for group in groups]
        for group, reason in zip(groups, refused, strict=True):
            if reason is None:
                _pack(model.graph, group, packed)
        return PassResult.of(refused)


def projection(node: ir.Node | None) -> Projection | None:
    """What starts with ``node``; None where that is no product with a weight."""
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
    """All readers of a weight must be in groups of the same weights: else the file would have both forms."""
    key = _key(group)
    for value in (value for each in group for value in (each.weight, each.bias) if value is not None):
        readers = [group_of.get(id(user)) for user, _ in value.uses()]
        if any(other is None or _key(other) != key for other in readers):
            return "a weight is read elsewhere too and would be stored twice"
    return None if len({each.weight.dtype for each in group}) == 1 else "the weights have several dtypes"


def _key(group: Sequence[Projection]) -> tuple[int, ...]:
    return tuple(id(value) for each in group for value in (each.weight, each.bias))


def _pack(graph: ir.Graph, group: Sequence[Projection], packed: _Packed) -> None:
    key = _key(group)
    if key not in packed:
        packed[key] = (_packed_weight(graph, group), _packed_bias(graph, group))
    weight, bias = packed[key]
    first = group[0].product
    g = Builder.at(first, name=f"{group[0].output.name}_packed")
    product = g.MatMul(first.inputs[0], weight)
    whole = product if bias is None else g.Add(product, bias)
    parts = g.several("Split", [""] * len(group), whole, [each.channels for each in group], axis=-1)
    for each, part in zip(group, parts, strict=True):
        replace(each.output, part)
        graph.remove(each.nodes, safe=True)


def _packed_weight(graph: ir.Graph, group: Sequence[Projection]) -> ir.Value:
    weights = [each.weight.const_value for each in group if each.weight.const_value is not None]
    rows = weights[0].shape[0]
    assert isinstance(rows, int)
    shape = ir.Shape([rows, sum(each.channels for each in group)])
    packed = initializer(graph, f"{group[0].weight.name}_packed", _concatenated(weights, shape))
    names = [name for each in group for name in names_of(each.weight)]
    packed.metadata_props[PACKED_FROM] = repr(names)
    return packed


def _packed_bias(graph: ir.Graph, group: Sequence[Projection]) -> ir.Value | None:
    """The biases of all projections; zeros for one that has none where another has."""
    tensors = [None if each.bias is None else each.bias.const_value for each in group]
    dtype = next((tensor.dtype for tensor in tensors if tensor is not None), None)
    if dtype is None:
        return None
    biases = [
        ir.tensor(np.zeros(each.channels, dtype.numpy())) if tensor is None else tensor
        for tensor, each in zip(tensors, group, strict=True)
    ]
    shape = ir.Shape([sum(each.channels for each in group)])
    return initializer(graph, f"{group[0].output.name}_bias_packed", _concatenated(biases, shape))


def _concatenated(tensors: Sequence[ir.TensorProtocol], shape: ir.Shape) -> ir.LazyTensor:
    """Concatenated along the last axis, each time that it is read, and not kept."""

    def concatenate() -> ir.TensorProtocol:
        return ir.tensor(np.concatenate([np.asarray(tensor.numpy()) for tensor in tensors], -1))

    return ir.LazyTensor(concatenate, tensors[0].dtype, shape)
