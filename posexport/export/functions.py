"""Give the nodes of domain ``posexport`` their meaning: attach a function for each kind, bodies in standard operators.

Attached last, because optimisers and version converters inline or drop functions, and with the model's own opset, which
the checker asks for.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from posexport.errors import PosexportError
from posexport.lowering import in_place, plan, share, side_by_side
from posexport.lowering.bias import SharedBias
from posexport.lowering.blocks import may_tile
from posexport.lowering.lowering import Kind, function
from posexport.lowering.waves import tabulated
from posexport.ops.attention import AttentionKind, bias_kinds
from posexport.ops.operator import DOMAIN, HELPERS, OPERATORS, functions
from posexport.targets.target import Target


@dataclass(frozen=True)
class Chosen:
    """Which lowering the nodes of a type got, how many they are, and why no other."""

    lowering: str
    nodes: int
    refused: dict[str, str]


def attach(model: ir.Model, target: Target | None = None, lowering: str = "auto") -> dict[str, Chosen]:
    """Attach the functions of all nodes of our domain; answers what each type that has several ways got.

    Attentions that add the same to their scores share it from here on.

    Raises:
        PosexportError: ``lowering`` does not apply to a kind of attention in the graph (the reason is in the message).
    """
    target = target or Target(opset=model.opset_imports[""])
    if lowering in ("auto", plan.GROUP_QUERY.name):
        in_place.write(model, plan.GROUP_QUERY, target)
    if lowering in ("auto", tabulated.Tabulated.name):
        tabulated.put(model, target)
    side_by_side.put(model, target)
    share.share(model)
    ours = [node for node in ir.traversal.RecursiveGraphIterator(model.graph) if node.domain == DOMAIN]
    count = Counter(node.op_type for node in ours)
    chosen: dict[str, Chosen] = {}
    needed: dict[str, ir.Function] = {}
    biases = bias_kinds()
    #: biases that an attention takes which cannot do without
    unlimited = set()
    for name, nodes in count.items():
        found = plan.family_of(name)
        if found is not None:
            family, kind = found
            if isinstance(kind, AttentionKind):
                sizes = {in_place.head_size(node) for node in ours if node.op_type == name}
                kind = replace(kind, head_size=sizes.pop() if len(sizes) == 1 else None)
            sized = _sized(target, kind, [node for node in ours if node.op_type == name])
            choice = plan.choose(family, kind, sized, lowering)
            chosen[name] = Chosen(choice.lowering.name, nodes, choice.refused)
            _need(needed, choice.lowering, kind, sized)
            cuts = choice.lowering.cuts and may_tile(target)
            if isinstance(kind, AttentionKind) and kind.biased and kind.bias and not cuts:
                unlimited.add(kind.bias.name)
        elif name in OPERATORS:
            needed |= {each.name: each for each in functions(OPERATORS[name].function, target.opset)}
        elif name in HELPERS:
            needed |= {each.name: each for each in functions(HELPERS[name], target.opset)}
        elif name not in biases:
            raise PosexportError(f"node type {DOMAIN}::{name} is unknown; known: {', '.join(OPERATORS)}")
    for name in count:
        if name in biases:
            _need(needed, SharedBias(limited=name not in unlimited), biases[name], target)
    for each in needed.values():
        model.functions[each.identifier()] = each
        for domain, version in each.opset_imports.items():
            model.opset_imports.setdefault(domain, version)
    _forget_attributes(model)
    # what a body's statements give and its kind does not read
    RemoveUnusedNodesPass()(model)
    if not needed:
        model.opset_imports.pop(DOMAIN, None)
    return chosen


def _forget_attributes(model: ir.Model) -> None:
    """Drop what calls say that their function does not ask for; the checker knows declared attributes only."""
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        called = model.functions.get(node.op_identifier())
        if called is not None:
            for name in [name for name in node.attributes if name not in called.attributes]:
                del node.attributes[name]


def _sized(target: Target, kind: Kind, nodes: Sequence[ir.Node]) -> Target:
    """The target for the function of these nodes: attention inside windows has queries of a fixed number."""
    if not isinstance(kind, AttentionKind):
        return target
    shapes = [node.inputs[0].shape for node in nodes if node.inputs[0] is not None]
    sizes = {None if shape is None else shape[1 if kind.joined else 2] for shape in shapes}
    fixed = [size for size in sizes if isinstance(size, int)]
    return replace(target, longest=max(fixed), shortest=min(fixed)) if len(fixed) == len(sizes) and fixed else target


def _need(needed: dict[str, ir.Function], lowering: Any, kind: Kind, target: Target) -> None:
    """The function of a kind, after those it calls: ONNX's reference evaluator wants a callee before its caller."""
    body = function(lowering, kind, target)
    for operator, whole in body.calls.values():
        needed |= {each.name: each for each in functions(operator.function, target.opset, whole=whole)}
    needed[body.function.name] = body.function
