"""Attention that rotates its queries and keys itself, from one projection's output: what GroupQueryAttention does."""

from dataclasses import dataclass, replace

import onnx_ir as ir

from posexport.graph.builder import Builder
from posexport.graph.edits import take_place
from posexport.graph.queries import axis, only, producer, sizes, width
from posexport.lowering.plan import GROUP_QUERY, GROWING
from posexport.ops.attention import AttentionSpec
from posexport.ops.cache import OF_ROTATION
from posexport.ops.operator import DOMAIN
from posexport.ops.rotation import RotationSpec
from posexport.passes.graph_pass import Context, GraphPass, PassResult
from posexport.targets.target import Target

_Calls = dict[tuple[object, ...], tuple[ir.Value, ...]]


class RotatingAttention(GraphPass):
    """Attention with the rotation of its queries and keys, and with the Split of their projection.

    Before: ``Split(qkv) -> q, k, v; posexport::Attention(Rotation(q), Rotation(k), v, past_k, past_v)``
    After:  ``posexport::Attention(qkv, past_k, past_v, cos, sin)``, or ``(q, k, v, ...)`` where something else than a
    rotation is between, such as the normalisation of queries and keys

    After `PackedHeads`, and after `Unpadding`, which looks for the Split.
    """

    name = "rotating-attention"
    description = "attention rotates queries and keys itself, and reads them from one projection"
    phase = "padding"
    is_listed_idle = False

    def refusal(self, target: Target) -> str | None:
        return target.needs_microsoft("GroupQueryAttention")

    def apply(self, model: ir.Model, context: Context) -> PassResult:
        """Apply the pass; the result counts attention nodes."""
        refused: list[str | None] = []
        calls: _Calls = {}
        for node in list(model.graph):
            spec = AttentionSpec.of(node)
            if spec is None or not spec.appends or spec.rotation:
                continue
            lowering = GROWING if spec.cache == "grow" else GROUP_QUERY
            if context.lowering not in ("auto", lowering.name):
                refused.append(f"it prepares for --lowering {lowering.name}, {context.lowering} was asked for")
                continue
            rotation = _Rotation.of(node)
            if rotation is None:
                refused.append("its queries and keys are not rotated by the same cosines and sines just before")
                continue
            rotating = replace(spec, rotation=rotation.spec.layout)
            reason = lowering.refusal(rotating, context.target)
            if reason is None:
                _rotate(node, spec, rotating, rotation, calls)
            refused.append(reason)
        return PassResult.of(refused)


@dataclass(frozen=True)
class _Rotation:
    """The rotations of an attention's queries and keys, which nothing else reads."""

    spec: RotationSpec
    q: ir.Node
    k: ir.Node

    @staticmethod
    def of(attention: ir.Node) -> "_Rotation | None":
        if not rotates_alike(*attention.inputs[:2]):
            return None
        q, k = (value.producer() for value in attention.inputs[:2] if value is not None)
        spec = None if q is None else RotationSpec.of(q)
        assert spec is not None
        assert q is not None
        assert k is not None
        return _Rotation(spec, q, k) if spec.packed else None

    @property
    def cos(self) -> ir.Value:
        assert self.q.inputs[1] is not None
        return self.q.inputs[1]

    @property
    def sin(self) -> ir.Value:
        assert self.q.inputs[2] is not None
        return self.q.inputs[2]


def rotates_alike(q: ir.Value | None, k: ir.Value | None) -> bool:
    """Whether both are rotated by the same cosines and sines, of known width, and read once."""
    turned = [value.producer() if value is not None and only(value) else None for value in (q, k)]
    specs = [None if node is None else RotationSpec.of(node) for node in turned]
    if None in turned or None in specs or specs[0] != specs[1]:
        return False
    angles = [node.inputs[1:] for node in turned if node is not None]
    return angles[0] == angles[1] and width(angles[0][0]) is not None


def _rotate(node: ir.Node, spec: AttentionSpec, rotating: AttentionSpec, rotation: _Rotation, calls: _Calls) -> None:
    """Replace ``node`` and its rotations by attention that rotates."""
    graph = node.graph
    assert graph is not None
    named = spec.named_inputs(node)
    named |= {"q": rotation.q.inputs[0], "k": rotation.k.inputs[0]}
    *of_call, of_few = _call(node, named, rotation, calls)
    named |= dict(zip(OF_ROTATION, of_call, strict=True))
    if spec.cache == "grow":
        named["rotates"] = of_few
    attributes: dict[str, object] = {"rotary_dim": 2 * (width(rotation.cos) or 0)}
    qkv = _joined(node, [named[name] for name in "qkv"])
    if qkv is not None:
        named["qkv"], attributes["joined_parts"] = qkv
        rotating = replace(rotating, joined=True)
    attention = rotating.node(named, like=node, **attributes)
    take_place(attention, node)
    graph.remove([rotation.q, rotation.k], safe=True)


def _call(node: ir.Node, named: dict[str, ir.Value | None], rotation: _Rotation, calls: _Calls) -> tuple[ir.Value, ...]:
    """The `RotatedCalls` of the node, shared by layers with the same mask, angles and capacity."""
    past = named["past_k"]
    inputs = (named["mask"], rotation.cos, rotation.sin, named["kpos"])
    key = (*inputs, (sizes(past) or (past,) * 3)[2])
    if key not in calls:
        g = Builder.at(node, name=node.name or "")
        calls[key] = g.several("RotatedCalls", [*OF_ROTATION, "rotates_few"], *inputs, past, domain=DOMAIN)
    return calls[key]


def _joined(node: ir.Node, parts: list[ir.Value | None]) -> tuple[ir.Value, ir.Attr] | None:
    """Queries, keys and values as one value [B, T, C], and their channels; None where they are not parts of one."""
    reshapes = [producer(value, "Reshape") for value in parts]
    sources = [
        reshape.inputs[0] if reshape is not None else value for reshape, value in zip(reshapes, parts, strict=True)
    ]
    split = producer(sources[0], "Split")
    if split is None or list(split.outputs) != sources or axis(split, 0) != -1:
        return None
    channels = [width(value) for value in parts]
    if None in channels or not all(only(value) for value in (*parts, *sources) if value is not None):
        return None
    whole, lead, first = split.inputs[0], sizes(parts[0]), reshapes[0]
    assert whole is not None
    assert lead is not None
    if first is not None and all(reshapes):
        g = Builder.at(node, name=whole.name or "")
        tokens = g.shape(g.Slice(first.inputs[1], [0], [2]), [sum(filter(None, channels))])
        whole = g.Reshape(whole, tokens, allowzero=1)
        whole.shape = ir.Shape([*lead[:2], sum(filter(None, channels))])
    elif any(reshapes):
        return None
    return whole, ir.AttrInt64s("joined_parts", [size for size in channels if size is not None])
