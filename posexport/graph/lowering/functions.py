"""Give the nodes of domain ``posexport`` their meaning: a function for each record, with a body in standard operators.

Attached last, because optimisers and version converters inline or drop functions, and with the opset of the model,
which the checker asks for.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from posexport.base.targets.target import Target
from posexport.errors import PosexportError
from posexport.graph.edits import unused
from posexport.graph.lowering import plan
from posexport.graph.lowering.bias import SharedBias
from posexport.graph.lowering.blocks import may_tile
from posexport.graph.lowering.lowering import Lowering, function
from posexport.graph.ops.attention import AttentionSpec, BiasSpec
from posexport.graph.ops.operator import DOMAIN, HELPERS, OPERATORS, functions
from posexport.graph.ops.spec import NodeSpec


@dataclass(frozen=True)
class Chosen:
    """Which lowering the nodes of a record got, how many they are, and why no other."""

    lowering: str
    nodes: int
    rejected: dict[str, str]
    spec: NodeSpec


@dataclass(frozen=True)
class _Planned:
    """Nodes of one record, and how to compute them in a graph for ``target``."""

    spec: NodeSpec
    nodes: list[ir.Node]
    lowering: Lowering[Any]
    target: Target
    #: why not by others; None where there are none
    rejected: dict[str, str] | None = None

    @property
    def needs_full_bias(self) -> bool:
        """Whether it computes all queries in one step in any call."""
        return not (self.lowering.tiles_queries and may_tile(self.target))


def attach(model: ir.Model, target: Target | None = None, lowering: str = "auto") -> dict[str, Chosen]:
    """Attach the functions of all nodes of our domain; returns the lowering of each that has several, by its name.

    Raises:
        PosexportError: ``lowering`` does not apply to attention in the graph (the reason is in the message).
    """
    target = target or Target(opset=model.opset_imports[""])
    attached: dict[str, ir.Function] = {}
    chosen: dict[str, Chosen] = {}
    for group in _with_tiled_biases(_plans(model, target, lowering)):
        name = unused(group.spec.name, attached, between="")  # another record may have it
        body = function(group.lowering, group.spec, group.target, name)
        # ONNX's reference evaluator wants a callee before its caller
        for operator, whole in body.calls.values():
            attached |= {callee.name: callee for callee in functions(operator.function, target.opset, whole=whole)}
        attached[name] = body.function
        for node in group.nodes:
            node.op_type = name
        if group.rejected is not None:
            chosen[name] = Chosen(group.lowering.name, len(group.nodes), group.rejected, group.spec)
    for name in dict.fromkeys(node.op_type for node in _nodes(model) if node.op_type not in attached):
        known = OPERATORS[name].function if name in OPERATORS else HELPERS.get(name)
        if known is None:
            raise PosexportError(f"node type {DOMAIN}::{name} is unknown; known: {', '.join(OPERATORS)}")
        attached |= {callee.name: callee for callee in functions(known, target.opset)}
    _put(model, attached)
    return chosen


def _nodes(model: ir.Model) -> list[ir.Node]:
    return [node for node in ir.traversal.RecursiveGraphIterator(model.graph) if node.domain == DOMAIN]


def _plans(model: ir.Model, target: Target, lowering: str) -> list[_Planned]:
    """How to compute the nodes of each record; biases last."""
    groups: dict[NodeSpec, list[ir.Node]] = defaultdict(list)
    families: dict[NodeSpec, plan.Family] = {}
    biases: dict[NodeSpec, list[ir.Node]] = defaultdict(list)
    head_sizes: dict[NodeSpec, set[int | None]] = defaultdict(set)
    for node in _nodes(model):
        known, bias = plan.family_of(node), BiasSpec.of(node)
        if known is not None:
            family, spec = known
            if isinstance(spec, AttentionSpec):  # one function for heads of any size
                head_sizes[replace(spec, head_size=None)].add(spec.head_size)
                spec = replace(spec, head_size=None)
            groups[spec].append(node)
            families[spec] = family
        elif bias is not None:
            biases[bias].append(node)
    planned = []
    for merged, nodes in groups.items():
        size = head_sizes[merged].pop() if len(head_sizes[merged]) == 1 else None
        spec = replace(merged, head_size=size) if isinstance(merged, AttentionSpec) else merged
        sized = _sized(target, spec, nodes)
        choice = plan.choose(families[merged], spec, sized, lowering)
        planned.append(_Planned(spec, nodes, choice.lowering, sized, choice.rejected))
    return [*planned, *(_Planned(spec, nodes, SharedBias(), target) for spec, nodes in biases.items())]


def _sized(target: Target, spec: NodeSpec, nodes: Sequence[ir.Node]) -> Target:
    """The target for the function of these nodes.

    Attention inside windows has a fixed number of queries, attention of one row after the other a fixed batch.
    """
    if not isinstance(spec, AttentionSpec):
        return target
    shapes, of_keys = ([value.shape for node in nodes if (value := node.inputs[place])] for place in (0, 1))
    lengths, keys = (
        _fixed([None if shape is None else shape[1 if spec.packed else 2] for shape in each])
        for each in (shapes, of_keys)
    )
    heads = _fixed([_heads(spec, node) for node in nodes])
    if lengths:
        least = min(lengths) * min(keys) * min(heads) if keys and heads else 0  # of one row
        return replace(target, longest=max(lengths), shortest=min(lengths), least_scores=least)
    batches = _fixed([None if shape is None else shape[0] for shape in shapes])
    if batches and heads and target.longest is not None:
        return replace(target, most_scores=max(batches) * max(heads) * target.longest**2)
    return target


def _fixed(sizes: Sequence[int | ir.SymbolicDim | None]) -> set[int]:
    """The different sizes, if all of them are known; else none."""
    known = {size for size in sizes if isinstance(size, int)}
    return known if all(isinstance(size, int) for size in sizes) else set()


def _heads(spec: AttentionSpec, node: ir.Node) -> int | ir.SymbolicDim | None:
    """How many heads the queries of ``node`` have."""
    if spec.packed:
        heads = node.attributes.get("heads")
        return None if heads is None else heads.as_int()
    shape = None if node.inputs[0] is None else node.inputs[0].shape
    return None if shape is None else shape[1]


def _with_tiled_biases(planned: Sequence[_Planned]) -> list[_Planned]:
    """Tiles the shared biases that no attention needs as a full [B, H, T, S] tensor."""
    readers = [(group, group.spec) for group in planned if isinstance(group.spec, AttentionSpec)]
    full = {spec.shared_bias for group, spec in readers if spec.bias != "none" and group.needs_full_bias}
    outputs: dict[ir.Value | None, dict[str, ir.Value]] = {}
    for group in planned:
        if isinstance(group.spec, BiasSpec) and group.spec not in full:
            names = replace(group.spec, tiled=True).outputs
            for node in group.nodes:
                node.resize_outputs(len(names))
                outputs[node.outputs[0]] = dict(zip(names, node.outputs, strict=True))
                for name, value in list(outputs[node.outputs[0]].items())[1:]:
                    value.name = f"{node.name}_{name}"
    return [replace(group, spec=_tiled(group, full, outputs)) for group in planned]


def _tiled(
    group: _Planned, full: set[BiasSpec | None], outputs: Mapping[ir.Value | None, Mapping[str, ir.Value]]
) -> NodeSpec:
    """Returns the record with a tiled bias unless that is in ``full``; attention then reads all ``outputs`` of it."""
    spec = group.spec
    if isinstance(spec, BiasSpec):
        return replace(spec, tiled=spec not in full)
    if not isinstance(spec, AttentionSpec) or spec.bias == "none" or spec.shared_bias in full:
        return spec
    tiled = replace(spec, bias="tiled")
    for node in group.nodes:
        inputs = spec.named_inputs(node)
        inputs |= outputs[inputs["bias"]]
        node.resize_inputs(len(tiled.inputs))
        for index, name in enumerate(tiled.inputs):
            node.replace_input_with(index, inputs[name])
    return tiled


def _put(model: ir.Model, attached: Mapping[str, ir.Function]) -> None:
    """Give the model its functions, and drop attributes of calls that these do not declare, as the checker asks."""
    for attached_function in attached.values():
        model.functions[attached_function.identifier()] = attached_function
        for domain, version in attached_function.opset_imports.items():
            model.opset_imports.setdefault(domain, version)
    for node in _nodes(model):
        declared = attached[node.op_type].attributes
        for name in [name for name in node.attributes if name not in declared]:
            del node.attributes[name]
    # remove nodes of bodies that compute unused values
    RemoveUnusedNodesPass()(model)
    if attached:
        model.opset_imports.setdefault(DOMAIN, 1)
    else:
        model.opset_imports.pop(DOMAIN, None)
