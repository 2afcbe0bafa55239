"""Finds attention whose queries, keys and values come from maps, and lets it take their heads side by side.

Operators that compute attention or a rotation as a whole take [B, T, H D], which is what maps give and take: nothing is
copied only to turn axes. Bodies that need heads apart take them apart themselves.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from posexport.graph.edits import integers
from posexport.graph.queries import only, producer, sizes, width
from posexport.ops.attention import AttentionKind
from posexport.ops.attention import kinds as attention_kinds
from posexport.ops.operator import DOMAIN
from posexport.ops.rotation import kinds as rotation_kinds
from posexport.targets.target import ATTENTION_OPSET, Target


@dataclass(frozen=True)
class _Heads:
    """Heads of ``map``, [B, T, H D] or [B T, H D], that ``reshape`` and a transposition take apart."""

    map: ir.Value
    reshape: ir.Node
    #: what turns them then, or adds [H, 1, D] to them
    rotation: ir.Node | None
    bias: ir.Node | None

    @property
    def shape(self) -> tuple[int | str, ...]:
        """[B, T, H, D]."""
        found = sizes(self.reshape.outputs[0])
        assert found is not None
        return found


def put(model: ir.Model, target: Target) -> int:
    """Let attention nodes take and give heads side by side where some operator can; how many."""
    if target.flat or not (target.microsoft or target.opset >= ATTENTION_OPSET):
        return 0
    leads: dict[ir.Value, ir.Value] = {}
    known = attention_kinds()
    done = 0
    for node in list(model.graph):
        kind = known.get(node.op_type) if node.domain == DOMAIN else None
        if kind is None or kind.static or kind.joined:
            continue
        given = [_heads(value) for value in node.inputs[:3]]
        found = [heads for heads in given if heads is not None]
        back = _back(node)
        if back is not None and len(found) == len(given):
            _join(node, kind, found, back, leads)
            done += 1
    return done


def _heads(value: ir.Value | None) -> _Heads | None:
    before = value.producer() if value is not None else None
    rotation = None
    if value is not None and before is not None and before.domain == DOMAIN and before.op_type in rotation_kinds():
        if only(value) is None:
            return None
        rotation, value = before, before.inputs[0]
    bias = producer(value, "Add") if rotation is None else None
    if bias is not None:
        value = bias.inputs[0]
        if not _is_bias(bias):
            return None
    turned = _turned(producer(value, "Transpose"))
    reshape = producer(turned.inputs[0], "Reshape") if turned is not None else None
    source = reshape.inputs[0] if reshape is not None else None
    if reshape is None or source is None or source.shape is None:
        return None
    after, before_it = sizes(reshape.outputs[0]), sizes(source)
    if after is None or len(after) != 4 or not isinstance(after[2], int) or not isinstance(after[3], int):
        return None
    same = len(source.shape) == 2 or (before_it is not None and before_it[:2] == after[:2])
    if len(source.shape) not in (2, 3) or width(source) != after[2] * after[3] or not same:
        return None
    return _Heads(source, reshape, rotation, bias)


def _is_bias(add: ir.Node) -> bool:
    """Whether ``add`` adds [H, 1, D], a vector for every head, to what comes first."""
    to, added = (sizes(value) for value in add.inputs)
    return to is not None and len(to) == 4 and added == (to[1], 1, to[3])


def _back(attention: ir.Node) -> ir.Node | None:
    """The node that puts the context's heads side by side again, after a transposition; None where none does."""
    turned = _turned(only(attention.outputs[0]))
    reshape = only(turned.outputs[0]) if turned is not None else None
    context = sizes(attention.outputs[0])
    if reshape is None or reshape.op_type != "Reshape" or reshape.domain or context is None or len(context) != 4:
        return None
    given = reshape.outputs[0]
    channels = context[1] * context[3] if isinstance(context[1], int) and isinstance(context[3], int) else None
    if given.shape is None or len(given.shape) not in (2, 3) or channels is None or width(given) != channels:
        return None
    same = len(given.shape) == 2 or (sizes(given) or ())[:2] == (context[0], context[2])
    return reshape if same else None


def _turned(node: ir.Node | None) -> ir.Node | None:
    """``node`` where it exchanges the axes of tokens and heads."""
    if node is None or node.op_type != "Transpose" or node.domain:
        return None
    return node if list(node.attributes.get_ints("perm") or ()) == [0, 2, 1, 3] else None


def _join(
    node: ir.Node, kind: AttentionKind, found: Sequence[_Heads], back: ir.Node, leads: dict[ir.Value, ir.Value]
) -> None:
    graph = node.graph
    assert graph is not None
    taken = replace(kind, joined=True)
    shapes = {by: _apart(by, heads) for by, heads in zip(taken.heads_of.values(), found, strict=True)}
    made = ir.node(
        taken.name,
        [*(_side_by_side(node, heads, leads) for heads in found), *node.inputs[3:]],
        {**node.attributes, **shapes},
        domain=DOMAIN,
        version=1,
        name=node.name,
        num_outputs=len(node.outputs),
    )
    made.metadata_props.update(node.metadata_props)
    graph.insert_before(node, made)
    for old, new in zip(node.outputs, made.outputs, strict=True):
        new.name, new.type, new.shape = old.name, old.type, old.shape
    context, gives = made.outputs[0], back.outputs[0]
    lead, channels = (sizes(node.outputs[0]) or ())[0::2], width(gives)
    context.shape = ir.Shape([*lead[:2], channels])
    transposition = back.inputs[0].producer() if back.inputs[0] is not None else None
    if len(gives.shape or ()) == 2:  # a row for every token: what it is reshaped to does not depend on what it was
        back.replace_input_with(0, context)
    else:
        ir.convenience.replace_all_uses_with(gives, context, replace_graph_outputs=True)
        graph.remove(back, safe=True)
    assert transposition is not None
    graph.remove(transposition, safe=True)
    for old, new in zip(node.outputs[1:], made.outputs[1:], strict=True):
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    graph.remove(node, safe=True)
    for heads in found:
        _drop(heads)


def _apart(name: str, heads: _Heads) -> ir.Attr:
    """The attribute with the shape that takes ``heads`` apart."""
    return ir.AttrInt64s(name, [0, 0, int(heads.shape[2]), -1])


def _side_by_side(attention: ir.Node, heads: _Heads, leads: dict[ir.Value, ir.Value]) -> ir.Value:
    """``heads`` as they came from their map, with axes of batch and tokens, turned as they were."""
    graph = attention.graph
    assert graph is not None
    value = heads.map
    batch, tokens, count, size = heads.shape
    if value.shape is not None and len(value.shape) == 2:
        value = _with_tokens(heads, leads)
    if heads.bias is not None:
        return _biased(heads.bias, value)
    if heads.rotation is None:
        return value
    old = heads.rotation
    kind = replace(rotation_kinds()[old.op_type], joined=True)
    attributes = {**old.attributes, "heads": ir.AttrInt64("heads", int(count)), "by_head": _apart("by_head", heads)}
    node = ir.node(kind.name, [value, *old.inputs[1:]], attributes, domain=DOMAIN, version=1, name=old.name)
    node.metadata_props.update(old.metadata_props)
    graph.insert_before(attention, node)
    made = node.outputs[0]
    made.name, made.type = old.outputs[0].name, old.outputs[0].type
    made.shape = ir.Shape([batch, tokens, int(count) * int(size)])
    return made


def _biased(old: ir.Node, value: ir.Value) -> ir.Value:
    """``value`` [B, T, H D] with what ``old`` adds to its heads."""
    graph, bias = old.graph, old.inputs[1]
    assert graph is not None
    flat = ir.node("Reshape", [bias, integers(graph, [-1])], name=f"{old.name}_of_heads")
    node = ir.node("Add", [value, flat.outputs[0]], name=f"{old.name}_side_by_side")
    made = flat.outputs[0]
    made.name, made.type, made.shape = f"{flat.name}_value", old.outputs[0].type, ir.Shape([width(value)])
    made = node.outputs[0]
    made.name, made.type, made.shape = f"{old.outputs[0].name}_side_by_side", old.outputs[0].type, value.shape
    for each in (flat, node):
        each.metadata_props.update(old.metadata_props)
        graph.insert_before(old, each)
    return made


def _with_tokens(heads: _Heads, leads: dict[ir.Value, ir.Value]) -> ir.Value:
    """A matrix with a row for every token, with axes of batch and tokens again."""
    graph, reshape, shape = heads.reshape.graph, heads.reshape, heads.reshape.inputs[1]
    assert graph is not None
    assert shape is not None
    batch, tokens, count, size = heads.shape
    channels = int(count) * int(size)
    if shape not in leads:
        cut = ir.node("Slice", [shape, integers(graph, [0]), integers(graph, [2])], name=f"{reshape.name}_lead")
        joined = ir.node("Concat", [cut.outputs[0], integers(graph, [channels])], {"axis": 0}, name=f"{cut.name}_shape")
        for node in (cut, joined):
            made = node.outputs[0]
            made.name, made.type = f"{node.name}_value", ir.TensorType(ir.DataType.INT64)
            made.shape = ir.Shape([2 + (node is joined)])
            graph.insert_before(reshape, node)
        leads[shape] = joined.outputs[0]
    node = ir.node("Reshape", [heads.map, leads[shape]], {"allowzero": 1}, name=f"{reshape.name}_side_by_side")
    node.metadata_props.update(reshape.metadata_props)
    graph.insert_before(reshape, node)
    made = node.outputs[0]
    made.name, made.type = f"{reshape.outputs[0].name}_side_by_side", reshape.outputs[0].type
    made.shape = ir.Shape([batch, tokens, channels])
    return made


def _drop(heads: _Heads) -> None:
    """Remove what nothing reads any more."""
    nodes = [heads.rotation, heads.bias, *(user for user, _ in heads.reshape.outputs[0].uses()), heads.reshape]
    for node in nodes:
        if node is not None and node.graph is not None and not any(output.uses() for output in node.outputs):
            node.graph.remove(node, safe=True)
