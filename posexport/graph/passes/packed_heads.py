"""Attention on packed heads [B, T, H*D], where its queries, keys and values come from linear projections.

Operators that compute attention or a rotation as a whole take packed heads, which is what linear projections give and
take: nothing is copied only to transpose it. Bodies that need split heads [B, H, T, D] split them themselves.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from posexport.base.targets.target import ATTENTION_OPSET, Target
from posexport.graph.builder import Builder
from posexport.graph.ops.attention import AttentionSpec
from posexport.graph.ops.rotation import RotationSpec
from posexport.graph.passes.graph_pass import Context, GraphPass, PassResult
from posexport.graph.queries import axis, only, producer, sizes, width


@dataclass(frozen=True)
class _SplitHeads:
    """Heads of ``projected``, [B, T, H*D] or [B*T, H*D], that ``reshape`` and a transposition split."""

    projected: ir.Value
    reshape: ir.Node
    #: what normalises every head, before or after the transposition
    norm: ir.Node | None
    #: what then rotates them, or adds [H, 1, D] to them
    rotation: ir.Node | None
    bias: ir.Node | None

    @property
    def shape(self) -> tuple[int | str, ...]:
        """The split heads, [B, T, H, D]."""
        shape = sizes(self.reshape.outputs[0])
        assert shape is not None
        return shape

    @property
    def channels(self) -> int:
        return int(self.shape[2]) * int(self.shape[3])

    def splitting(self, name: str) -> ir.Attr:
        """The attribute with the shape that splits the heads."""
        return ir.AttrInt64s(name, [0, 0, int(self.shape[2]), -1])

    @property
    def nodes(self) -> list[ir.Node]:
        """The nodes to remove, the last one first."""
        split = [value for node in (self.norm, self.reshape) if node is not None for value in node.outputs[:1]]
        transpositions = [user for value in split for user, _ in value.uses() if user.op_type == "Transpose"]
        ends = self.rotation, self.bias, self.norm, *transpositions, self.norm, self.reshape
        return [node for node in ends if node is not None]


_Leads = dict[tuple[ir.Value, int], ir.Value]


class PackedHeads(GraphPass):
    """Attention that reads and returns packed heads, between linear projections.

    Before: ``MatMul -> Reshape [B, T, H, D] -> Transpose -> posexport::Attention -> Transpose -> Reshape -> MatMul``
    After:  ``MatMul -> posexport::Attention (packed) -> MatMul``

    Queries, keys and values each come, and the context leaves, by one of:

    1. Reshape [B, T, H * D] to [B, T, H, D], then Transpose: both go.
    2. The same from [B * T, H * D], as `FlatTokens` leaves it: a Reshape to [B, T, H * D] stays.
    3. After the Transpose a rotation, which then takes packed heads too.
    4. After the Transpose an Add of [H, 1, D], which then comes before it.
    5. Before or after the Transpose a normalisation of every head, before what 3 and 4 say: it reads [B, T, H, D], and
       a Reshape packs what it gives.

    Left: heads from elsewhere (keys in a KV cache), and a context that is not packed again.
    """

    name = "packed-heads"
    description = "attention and RoPE on packed heads [B, T, H*D], without transpositions"

    def refusal(self, target: Target) -> str | None:
        if target.flat:
            return "functions that split heads are for runtimes with functions"
        return None if target.microsoft else target.needs(ATTENTION_OPSET, "an operator that takes packed heads")

    def apply(self, model: ir.Model, context: Context) -> PassResult:
        """Apply the pass; the result counts attention nodes."""
        #: by the number of channels: shapes that split heads -> shapes that pack them; split heads -> the same packed
        leads: _Leads = {}
        refused: list[str | None] = []
        for node in list(model.graph):
            spec = AttentionSpec.of(node)
            if spec is None or spec.packed:
                continue
            heads = [head for head in map(_split_heads, node.inputs[:3]) if head is not None]
            packing = None if spec.cache == "static" else _packing_of_context(node)
            if packing is not None and len(heads) == len("qkv"):
                _pack(node, spec, heads, packing, leads)
                refused.append(None)
            else:
                refused.append("its queries, keys, values or context are no packed heads, such as keys in a KV cache")
        return PassResult.of(refused)


def _split_heads(value: ir.Value | None) -> _SplitHeads | None:
    """Where the heads of ``value`` come from; None where that is no linear projection."""
    before = value.producer() if value is not None else None
    rotation = before if before is not None and RotationSpec.of(before) is not None else None  # case 3
    if value is not None and rotation is not None:
        if only(value) is None:
            return None
        value = rotation.inputs[0]
    bias = producer(value, "Add") if rotation is None else None  # case 4
    if bias is not None:
        value = bias.inputs[0]
        if not _adds_to_heads(bias):
            return None
    norm = _norm_of_heads(value)  # case 5
    transposed = _exchanges_tokens_and_heads(producer(value if norm is None else norm.inputs[0], "Transpose"))
    split = transposed.inputs[0] if transposed is not None else None
    if norm is None:
        norm = _norm_of_heads(split)
        split = split if norm is None else norm.inputs[0]
    reshape = producer(split, "Reshape")
    projected = reshape.inputs[0] if reshape is not None else None
    if reshape is None or projected is None or not _splits_channels(projected, reshape.outputs[0]):
        return None
    return _SplitHeads(projected, reshape, norm, rotation, bias)


def _norm_of_heads(value: ir.Value | None) -> ir.Node | None:
    """The normalisation of [.., D] with one scale for all heads, of which ``value`` is the only output that is read."""
    node = value.producer() if value is not None else None
    if node is None or node.domain or node.op_type not in ("LayerNormalization", "RMSNormalization"):
        return None
    weights = [weight for weight in node.inputs[1:] if weight is not None]
    of_each = axis(node, -1) == -1 and all(len(weight.shape or ()) == 1 for weight in weights)
    read_too = [output for output in node.outputs[1:] if output.uses() or output.is_graph_output()]
    return node if of_each and not read_too and value is not None and only(value) is not None else None


def _splits_channels(packed: ir.Value, split: ir.Value) -> bool:
    """Whether ``packed`` is [B, T, H*D] or [B*T, H*D] of ``split`` [B, T, H, D]."""
    shape = sizes(split)
    if shape is None or len(shape) != 4 or packed.shape is None or len(packed.shape) not in (2, 3):
        return False
    heads, size = shape[2:]
    if not isinstance(heads, int) or not isinstance(size, int) or width(packed) != heads * size:
        return False
    return len(packed.shape) == 2 or (sizes(packed) or ())[:2] == shape[:2]


def _adds_to_heads(add: ir.Node) -> bool:
    """Whether ``add`` adds [H, 1, D], a vector for every head, to what comes first."""
    to, added = (sizes(value) for value in add.inputs)
    return to is not None and len(to) == 4 and added == (to[1], 1, to[3])


def _packing_of_context(attention: ir.Node) -> ir.Node | None:
    """The Reshape that packs the context's heads again, after a transposition; None where there is none."""
    transposed = _exchanges_tokens_and_heads(only(attention.outputs[0]))
    reshape = only(transposed.outputs[0]) if transposed is not None else None
    if transposed is None or reshape is None or reshape.op_type != "Reshape" or reshape.domain:
        return None
    context = sizes(attention.outputs[0])
    if context is None or len(context) != 4:
        return None
    batch, heads, tokens, size = context
    split = ir.Value(shape=ir.Shape([batch, tokens, heads, size]))
    return reshape if _splits_channels(reshape.outputs[0], split) else None


def _exchanges_tokens_and_heads(node: ir.Node | None) -> ir.Node | None:
    if node is None or node.op_type != "Transpose" or node.domain:
        return None
    return node if list(node.attributes.get_ints("perm") or ()) == [0, 2, 1, 3] else None


def _pack(
    node: ir.Node,
    spec: AttentionSpec,
    heads: Sequence[_SplitHeads],
    packing: ir.Node,
    leads: _Leads,
) -> None:
    """Replace ``node`` by attention on packed heads, without the nodes that split and packed them."""
    graph = node.graph
    assert graph is not None
    transposed = packing.inputs[0]
    attention = _packed_attention(node, spec, heads, [_packed_input(node, head, leads) for head in heads])
    graph.insert_before(node, attention)
    context, output = attention.outputs[0], packing.outputs[0]
    if len(output.shape or ()) == 2:  # to a row for every token, whatever the shape was
        packing.replace_input_with(0, context)
    else:
        ir.convenience.replace_all_uses_with(output, context, replace_graph_outputs=True)
        graph.remove(packing, safe=True)
    for old, new in zip(node.outputs[1:], attention.outputs[1:], strict=True):
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    transposition = transposed.producer() if transposed is not None else None
    assert transposition is not None
    graph.remove([transposition, node], safe=True)
    for unused in (inner for head in heads for inner in head.nodes):
        # keys of a first call may be outputs, for the cache of the next one
        read = any(value.uses() or value.is_graph_output() for value in unused.outputs)
        if unused.graph is not None and not read:
            graph.remove(unused, safe=True)


def _packed_attention(
    node: ir.Node, spec: AttentionSpec, heads: Sequence[_SplitHeads], inputs: Sequence[ir.Value]
) -> ir.Node:
    """The attention of ``node`` on packed queries, keys and values, with the names of its outputs."""
    packed = replace(spec, packed=True)
    splitting = {name: head.splitting(name) for name, head in zip(packed.head_shapes.values(), heads, strict=True)}
    named = spec.named_inputs(node) | dict(zip("qkv", inputs, strict=True))
    attention = packed.node(named, like=node, **splitting)
    attention.metadata_props.update(node.metadata_props)
    for old, new in zip(node.outputs, attention.outputs, strict=True):
        new.name, new.type, new.shape = old.name, old.type, old.shape
    batch, count, tokens, size = sizes(node.outputs[0]) or ()
    attention.outputs[0].shape = ir.Shape([batch, tokens, int(count) * int(size)])
    return attention


def _packed_input(attention: ir.Node, heads: _SplitHeads, leads: _Leads) -> ir.Value:
    """``heads`` as they came from their projection, [B, T, H*D], with what was added to them or rotated."""
    if heads.rotation is not None:
        return _rotated(attention, heads.rotation, heads, _packed_projection(heads, leads))
    split = (heads.bias or heads.norm or heads.reshape).outputs[0]
    place = split, heads.channels
    if place not in leads:  # keys may be the values too, and the same in several layers
        value = _packed_projection(heads, leads)
        leads[place] = value if heads.bias is None else _biased(heads.bias, value)
    return leads[place]


def _packed_projection(heads: _SplitHeads, leads: _Leads) -> ir.Value:
    """[B, T, H*D], also where the projection is [B*T, H*D]; normalised where each head is."""
    if heads.norm is not None:
        return _normalised(heads, heads.norm)
    flat = heads.projected.shape is not None and len(heads.projected.shape) == 2  # case 2
    return _with_tokens(heads, leads) if flat else heads.projected


def _normalised(heads: _SplitHeads, norm: ir.Node) -> ir.Value:
    """[B, T, H*D], normalised as [B, T, H, D]."""
    g, split = Builder.at(norm, after=True), heads.reshape.outputs[0]
    normalised = norm.outputs[0]
    if norm.inputs[0] is not split:  # after the transposition
        inputs = [split, *norm.inputs[1:]]
        (normalised,) = g.add(ir.Node("", norm.op_type, inputs, list(norm.attributes.values()), version=norm.version))
        normalised.type, normalised.shape = norm.outputs[0].type, split.shape
    return g.Reshape(normalised, [0, 0, heads.channels], shape=[*heads.shape[:2], heads.channels])


def _rotated(attention: ir.Node, old: ir.Node, heads: _SplitHeads, value: ir.Value) -> ir.Value:
    spec = RotationSpec.of(old)
    assert spec is not None
    sizes = {"heads": int(heads.shape[2]), "split_heads": heads.splitting("split_heads")}
    node = replace(spec, packed=True).node({**spec.named_inputs(old), "x": value}, like=old, **sizes)
    (packed,) = Builder.at(attention, like=[old]).add(node)
    packed.type, packed.shape = value.type, ir.Shape([*heads.shape[:2], heads.channels])
    return packed


def _biased(old: ir.Node, value: ir.Value) -> ir.Value:
    """``value`` with what ``old`` adds to its heads."""
    g = Builder.at(old)
    return g.Add(value, g.Reshape(old.inputs[1], [-1]))


def _with_tokens(heads: _SplitHeads, leads: _Leads) -> ir.Value:
    """[B*T, H*D] with axes of batch and tokens again; ``leads``: shapes that split heads -> shapes [B, T, H*D]."""
    graph, shape = heads.reshape.graph, heads.reshape.inputs[1]
    assert graph is not None
    assert shape is not None
    # [B, T, -1, D] splits any number of heads
    place = shape, heads.channels
    if place not in leads:
        # at the shape itself: queries, keys and values may be split in any order
        g = Builder.behind(graph, shape)
        leads[place] = g.shape(g.Slice(shape, [0], [2]), [heads.channels])
    tokens = [*heads.shape[:2], heads.channels]
    return Builder.at(heads.reshape).op("Reshape", heads.projected, leads[place], allowzero=1, shape=tokens)
