"""Maps of the same input as one: weights side by side, one MatMul (and one Add), and a Split.

Queries, keys and values of an attention; gate and values of a gated feed-forward. The weights are put together when
the file is written, one at a time, so that no second copy of them all is in memory.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from posexport.graph.edits import initializer, integers, put, replace
from posexport.graph.queries import is_weight, only, width
from posexport.targets.target import Target


@dataclass(frozen=True)
class _Map:
    """A MatMul with a constant weight, and the Add of its bias where it has one."""

    product: ir.Node
    weight: ir.Value
    add: ir.Node | None
    bias: ir.Value | None

    @property
    def out(self) -> ir.Value:
        return (self.add or self.product).outputs[0]

    @property
    def size(self) -> int:
        found = width(self.weight)
        assert found is not None
        return found


class Packing:
    """One product for several: worth its Split only where starting a product is what costs."""

    name = "packing"

    def refusal(self, target: Target) -> str | None:
        """Standard operators."""
        del target
        return None

    def beaten(self, target: Target) -> str | None:
        """Measured with onnxruntime 1.31 on two cores at 768 channels; not measured on CUDA."""
        if target.provider is None:
            return "a portable graph keeps the weights as the source has them, each by its name"
        if (reason := target.unprofitable(self.name)) or target.steps:
            return reason
        return "on the CPU it saves time at one token only; from 128 on its Split costs 3 to 5% of the products"

    def apply(self, model: ir.Model, target: Target) -> int:
        """How many products were put together, groups of them."""
        del target
        by_input: dict[ir.Value, list[_Map]] = defaultdict(list)
        for node in model.graph:
            found = _map(node)
            if found is not None and node.inputs[0] is not None:
                by_input[node.inputs[0]].append(found)
        groups = [maps for maps in by_input.values() if len(maps) > 1]
        used = {id(node): maps for maps in groups for one in maps for node in (one.product, one.add) if node}
        packed: dict[tuple[int, ...], tuple[ir.Value, ir.Value | None]] = {}
        done = 0
        for maps in groups:
            if _stored_once(maps, used):
                _pack(model.graph, maps, packed)
                done += 1
        return done


def _map(node: ir.Node) -> _Map | None:
    if node.op_type != "MatMul" or node.domain or not is_weight(node.inputs[1], 2):
        return None
    weight = node.inputs[1]
    assert weight is not None
    add = only(node.outputs[0])
    if add is not None and add.op_type == "Add" and not add.domain:
        bias = next((value for value in add.inputs if value is not node.outputs[0]), None)
        if bias is not None and is_weight(bias, 1) and width(bias) == width(weight):
            return _Map(node, weight, add, bias)
    return _Map(node, weight, None, None)


def _stored_once(maps: Sequence[_Map], used: dict[int, list[_Map]]) -> bool:
    """Whether all that read these weights read them in groups of the same: else both forms would be in the file."""
    key = _key(maps)
    for one in maps:
        for value in (one.weight, one.bias):
            users = [] if value is None else [user for user, _ in value.uses()]
            for user in users:
                group = used.get(id(user))
                if group is None or _key(group) != key:
                    return False
    types = {one.weight.dtype for one in maps}
    return len(types) == 1


def _key(maps: Sequence[_Map]) -> tuple[int, ...]:
    return tuple(id(value) for one in maps for value in (one.weight, one.bias))


def _pack(
    graph: ir.Graph, maps: Sequence[_Map], packed: dict[tuple[int, ...], tuple[ir.Value, ir.Value | None]]
) -> None:
    key = _key(maps)
    if key not in packed:
        packed[key] = (_side_by_side(graph, maps), _biases(graph, maps))
    weight, bias = packed[key]
    first = maps[0].product
    base = maps[0].out.name
    product = ir.node("MatMul", [first.inputs[0], weight], name=f"{first.name}_packed")
    nodes = [product]
    if bias is not None:
        nodes.append(ir.node("Add", [product.outputs[0], bias], name=f"{first.name}_packed_bias"))
    sizes = integers(graph, [one.size for one in maps])
    split = ir.node(
        "Split", [nodes[-1].outputs[0], sizes], {"axis": -1}, num_outputs=len(maps), name=f"{first.name}_split"
    )
    total = sum(one.size for one in maps)
    for number, node in enumerate(nodes):
        made = node.outputs[0]
        made.name, made.type = f"{base}_packed_{number}", maps[0].out.type
        lead = maps[0].out.shape
        made.shape = None if lead is None else ir.Shape([*lead[:-1], total])
    for node in (*nodes, split):
        put(node, first, (first,))
    for one, output in zip(maps, split.outputs, strict=True):
        replace(one.out, output)
    for one in maps:
        graph.remove([node for node in (one.add, one.product) if node is not None], safe=True)


def _side_by_side(graph: ir.Graph, maps: Sequence[_Map]) -> ir.Value:
    parts = [one.weight.const_value for one in maps if one.weight.const_value is not None]
    read = parts[0].shape[0]
    assert isinstance(read, int)
    shape = ir.Shape([read, sum(one.size for one in maps)])
    return initializer(graph, f"{maps[0].weight.name}_packed", _joined(parts, shape))


def _biases(graph: ir.Graph, maps: Sequence[_Map]) -> ir.Value | None:
    """Those of all maps; zeros for one that has none where another has."""
    given = [None if one.bias is None else one.bias.const_value for one in maps]
    dtype = next((part.dtype for part in given if part is not None), None)
    if dtype is None:
        return None
    parts = [
        ir.tensor(np.zeros(one.size, dtype.numpy())) if part is None else part
        for part, one in zip(given, maps, strict=True)
    ]
    shape = ir.Shape([sum(one.size for one in maps)])
    return initializer(graph, f"{maps[0].out.name}_bias_packed", _joined(parts, shape))


def _joined(parts: Sequence[ir.TensorProtocol], shape: ir.Shape) -> ir.LazyTensor:
    """Side by side, made anew whenever it is read, and kept nowhere."""

    def make() -> ir.TensorProtocol:
        return ir.tensor(np.concatenate([np.asarray(part.numpy()) for part in parts], -1))

    return ir.LazyTensor(make, parts[0].dtype, shape)
