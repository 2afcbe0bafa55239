"""Rotation that users write as products with cosines and sines, as rotation nodes."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import onnx_ir as ir

from posexport.base.refusal import Refusal
from posexport.base.spec import NO_CONTENT
from posexport.graph.builder import Builder
from posexport.graph.dataflow import dependents
from posexport.graph.edits import replace as replace_value
from posexport.graph.ops import rotation
from posexport.graph.ops.operator import DOMAIN
from posexport.graph.ops.rotation import LAYOUTS, Layout, RotationSpec
from posexport.graph.partial import Array, Subgraph
from posexport.graph.passes.graph_pass import Context, PassResult
from posexport.graph.passes.recognise.recognition import Recognition
from posexport.graph.queries import producer, sizes

#: what picks or joins channels, and all that a rotation is made of
_MOVES = ("Slice", "Split", "Concat", "Gather")
_STEPS = (*_MOVES, "Reshape", "Unsqueeze", "Squeeze", "Cast", "Identity", "Neg", "Add", "Sub", "Mul")
_LASTS = ("Add", "Sub", "Concat", "Reshape")
#: heads and tokens in each other's place
_EXCHANGED = [0, 2, 1, 3]
#: nodes of a rotation, at most
_MOST = 64
#: of a batch, and tokens of two lengths
_BATCH, _LENGTHS = 2, (5, 8)
#: roundings of float32 of a squared cosine and sine, and of their sum
_ROUNDINGS = 8 * float(np.finfo(np.float32).eps)
_NO_PAIRS = Refusal("what multiplies its channels by positions rotates no pairs, in halves or interleaved")
_FACTORS = Refusal("what rotates its channels is not one tensor of cosines and one of sines, [B or 1, T, D or D / 2]")
_UNKNOWN_ANGLES = "its cosines and sines could not be computed from positions"
_MIXED = "its cosines and sines differ within the pairs of channels that it rotates"
_NO_ANGLES = "its cosines and sines are not those of the same angles"


@dataclass(frozen=True)
class _Region:
    """Nodes from ``x`` to the same ``rotated``, which multiply by ``factors`` of positions; ``inner``: their values."""

    x: ir.Value
    rotated: ir.Value
    factors: tuple[ir.Value, ...]
    inner: frozenset[ir.Value]

    @property
    def shape(self) -> tuple[int | str, ...]:
        return sizes(self.x) or ()


@dataclass(frozen=True)
class _Rotary:
    """A rotation: ``cos`` and ``sin`` have one channel per pair or, ``doubled``, two."""

    cos: ir.Value
    sin: ir.Value
    layout: Layout
    pairs: int
    doubled: bool
    #: the axis of heads in x
    heads_axis: Literal[1, 2]

    def name(self, channels: int) -> str:
        layout = "halves" if self.layout == "half" else self.layout
        return f"rotary, {layout}, {2 * self.pairs} of {channels} channels"

    def once(self, of_channels: Array) -> tuple[Array, Array]:
        """Split [..., channels] into the first and the second channels of the pairs."""
        if not self.doubled:
            return of_channels, of_channels
        if self.layout == "half":
            return of_channels[..., : self.pairs], of_channels[..., self.pairs :]
        return of_channels[..., 0::2], of_channels[..., 1::2]


class Rotary(Recognition):
    """One rotation node for the nodes between x and the rotated value.

    Before: ``Add(Mul(x, cos), Mul(Concat(Neg(Slice(x, D/2..)), Slice(x, ..D/2)), sin))``
    After:  ``posexport::Rotation(x, cos, sin)``

    In halves or interleaved, of all channels or the first ones, also by complex numbers:

    1. From the last node (Add, Sub, Concat, Reshape) back to the nearest value of the same sizes, x: a region of at
       most 64 nodes that only move, add and multiply.
    2. What multiplies x in between and is of positions alone: two tensors, of cosines and of sines, each of the width
       of the pairs once or twice.
    3. The region, computed with small integers at two lengths, equals the oracle of `posexport.graph.ops.rotation` in
       one layout.
    4. Cosines and sines, computed for inputs of several sizes, are of one angle per pair of channels, times one number.

    The cosines and sines stay as the module computes them. Left: rotations of other channels than the first ones of x
    [B, H, T, D] or [B, T, H, D].
    """

    name = "rotary"
    description = "products with cosines and sines as RoPE nodes"

    def apply(self, model: ir.Model, context: Context) -> PassResult:
        """Apply the pass; the result counts rotations."""
        _negate_last(model)
        angles = _Angles(model, context.samples)
        reasons: dict[_Region, str] = {}
        names: list[str] = []
        changed: set[ir.Value] = set()
        positional = {spec.name for spec in context.inputs if spec.role in NO_CONTENT}
        for region in list(_regions(model, positional)):  # rule 1
            if region.rotated in changed:
                continue
            rotary = _rotary(model, region)  # rules 2 and 3
            reason = rotary.reason if isinstance(rotary, Refusal) else angles.refusal(rotary)  # rule 4
            if isinstance(rotary, Refusal) or reason is not None:
                reasons[region] = reason or ""
                continue
            changed |= {region.rotated, *region.inner}
            names.append(rotary.name(int(region.shape[3])))
            _put_node(region, rotary)
        left = [reason for region, reason in reasons.items() if not changed & {region.rotated, *region.inner}]
        return replace(PassResult.of([*[None] * len(names), *left]), recognised=tuple(dict.fromkeys(names)))


def _regions(model: ir.Model, positional: Collection[str]) -> Iterator[_Region]:
    """Candidates, the last of the graph first: one inside another comes after it."""
    order = {node: index for index, node in enumerate(model.graph)}
    content = dependents(model.graph, [value for value in model.graph.inputs if value.name not in positional])
    for node in reversed(order):
        last = node.outputs[0]
        shape = sizes(last) or ()
        is_of_heads = last.dtype == ir.DataType.FLOAT and len(shape) == 4 and isinstance(shape[3], int)
        if node.op_type in _LASTS and not node.domain and last in content and is_of_heads:
            region = _region(last, content, order)
            if region is not None:
                yield region


def _region(rotated: ir.Value, content: Collection[ir.Value], order: Mapping[ir.Node, int]) -> _Region | None:
    """From ``rotated`` back to the nearest value of the same sizes, and the factors of positions in between."""
    todo, inner, moves = {rotated}, set[ir.Value](), False
    factors: dict[ir.Value, None] = {}
    while len(inner) < _MOST and todo:
        value = max(todo, key=lambda candidate: order.get(candidate.producer(), -1))  # type: ignore[arg-type]
        is_same_kind = value.dtype == rotated.dtype and sizes(value) == sizes(rotated)
        if moves and factors and len(todo) == 1 and is_same_kind:
            once = tuple(factor for factor in factors if not _negates(factor, factors))
            return _Region(value, rotated, once, frozenset(inner - {rotated}))
        node = value.producer()
        if node is None or node.domain or node.op_type not in _STEPS:
            return None
        todo.remove(value)
        inner.add(value)
        moves = moves or node.op_type in _MOVES
        for operand in node.inputs:
            if operand is not None and operand in content:
                todo.add(operand)
            elif node.op_type == "Mul" and operand is not None and len(sizes(operand) or ()) > 1:
                factors[operand] = None
    return None


def _negate_last(model: ir.Model) -> None:
    """``Unsqueeze(-sin)`` as ``-Unsqueeze(sin)`` where there is the latter too: sines of either sign are one tensor."""
    for node in list(model.graph):
        negated = producer(node.inputs[0], "Neg") if node.op_type == "Unsqueeze" else None
        x = None if negated is None else negated.inputs[0]
        for other, _ in () if x is None else x.uses():
            if other.op_type == "Unsqueeze" and other.inputs[1] is node.inputs[1] and not other.domain:
                replace_value(node.outputs[0], Builder.at(node).Neg(other.outputs[0]))
                model.graph.sort()  # the other may come later
                break


def _negates(factor: ir.Value, factors: Collection[ir.Value]) -> bool:
    """Whether it is one of the others with the other sign, ``x[0] * cos + x[1] * (-sin)``."""
    node = producer(factor, "Neg")
    return node is not None and node.inputs[0] in factors


def _rotary(model: ir.Model, region: _Region) -> _Rotary | Refusal:
    """What rotation a region is, by its values for whole numbers at two lengths, or why none."""
    heads_axis = _heads_axis(region)
    if len(region.factors) != 2 or heads_axis is None:
        return _FACTORS
    subgraph = Subgraph(model, [region.rotated], [region.x, *region.factors])
    if not subgraph.is_closed:
        return _NO_PAIRS
    width, channels = _width(region.factors[0]), int(region.shape[3])
    for layout in LAYOUTS:
        for doubled in (True, False):
            pairs = width // 2 if doubled else width
            for cos, sin in (region.factors, region.factors[::-1]):
                rotary = _Rotary(cos, sin, layout, pairs, doubled, heads_axis)
                fits = 0 < 2 * pairs <= channels and not (doubled and width % 2)
                if fits and all(_is_rotated(subgraph, region, rotary, length) for length in _LENGTHS):
                    return rotary
    return _NO_PAIRS


def _heads_axis(region: _Region) -> Literal[1, 2] | None:
    """Of x, by the sizes of all factors: of one width, for every token."""
    shapes = [_of_three(factor) for factor in region.factors]
    axis: Literal[1, 2]
    for axis in (1, 2):
        tokens = region.shape[3 - axis]
        fit = all(
            shape[0] in (1, region.shape[0]) and shape[axis] == 1 and _is_size(shape[3 - axis], tokens)
            for shape in shapes
        )
        if fit and isinstance(region.shape[axis], int) and len({_width(factor) for factor in region.factors}) == 1:
            return axis
    return None


def _is_size(size: int | str, tokens: int | str) -> bool:
    """Whether ``size`` is the number of ``tokens``; names may differ, for example of a sliced table."""
    return size == tokens or (isinstance(size, str) and isinstance(tokens, str))


def _trailing(factor: ir.Value) -> bool:
    """Whether it has an axis of 1 after its channels, for pairs on a separate axis."""
    return (sizes(factor) or ())[-1] == 1


def _width(factor: ir.Value) -> int:
    """Channels; 0 where they are not known."""
    size = (sizes(factor) or ())[-1 - _trailing(factor)]
    return size if isinstance(size, int) else 0


def _of_three(factor: ir.Value) -> tuple[int | str, ...]:
    """Sizes of the three axes before the channels, 1 for missing ones."""
    shape = (sizes(factor) or ())[: -1 - _trailing(factor)]
    return (1,) * (3 - len(shape)) + shape


def _is_rotated(subgraph: Subgraph, region: _Region, rotary: _Rotary, length: int) -> bool:
    """Whether x is rotated so by any angles, in numbers that float32 has exactly."""
    known = {size: length for size in region.shape if isinstance(size, str)}
    for factor in region.factors:
        known |= {size: length for size in _of_three(factor)[1:] if isinstance(size, str)}
    if isinstance(region.shape[0], str):
        known[region.shape[0]] = _BATCH
    rng = np.random.default_rng(length)

    def numbers(shape: Sequence[int | str]) -> Array:
        return rng.integers(-8, 9, [known.get(n, 1) if isinstance(n, str) else n for n in shape]).astype(np.float32)

    arrays, angles = {region.x: numbers(region.shape)}, []
    for factor in (rotary.cos, rotary.sin):
        once = numbers([*_of_three(factor), rotary.pairs])
        whole = once
        if rotary.doubled:
            whole = np.concatenate([once, once], -1) if rotary.layout == "half" else np.repeat(once, 2, -1)
        arrays[factor] = whole.reshape(
            [*whole.shape[3 - _leading(factor) : 3], whole.shape[3], *[1] * _trailing(factor)]
        )
        angles.append(_heads_first(once, rotary).astype(np.float64))
    rotated = subgraph.run(arrays, known)
    expected = rotation.oracle(_heads_first(arrays[region.x], rotary).astype(np.float64), *angles, layout=rotary.layout)
    return rotated is not None and np.array_equal(_heads_first(rotated[0], rotary), expected)


def _leading(factor: ir.Value) -> int:
    """The number of axes before the channels."""
    return len(sizes(factor) or ()) - 1 - _trailing(factor)


def _heads_first(x: Array, rotary: _Rotary) -> Array:
    return x if rotary.heads_axis == 1 else x.swapaxes(1, 2)


class _Angles:
    """Cosines and sines of one model, computed for ``samples``, each pair of tensors once."""

    def __init__(self, model: ir.Model, samples: Sequence[Mapping[str, Array]]) -> None:
        self.model, self.samples = model, samples
        self._known: dict[tuple[ir.Value, ir.Value], list[list[Array]] | None] = {}

    def refusal(self, rotary: _Rotary) -> str | None:
        """Why these are not the cosines and sines of one angle for every pair of channels, times one number."""
        key = rotary.cos, rotary.sin
        if key not in self._known:
            self._known[key] = self._computed(key)
        known = self._known[key]
        if known is None:
            return _UNKNOWN_ANGLES
        for values in known:
            shaped = [x.reshape(x.shape[:-1] if _trailing(rotary.cos) else x.shape) for x in values]
            pairs = [rotary.once(x) for x in shaped]
            if not all(np.array_equal(first, second) for first, second in pairs):
                return _MIXED
            cos, sin = (first.astype(np.float64) for first, _ in pairs)
            squared = cos**2 + sin**2
            scale = squared.flat[0]
            if not (np.abs(squared - scale) <= _ROUNDINGS * scale).all() or not scale > 0:
                return _NO_ANGLES
        return None

    def _computed(self, pair: Sequence[ir.Value]) -> list[list[Array]] | None:
        subgraph = Subgraph(self.model, pair)
        known = list(subgraph.for_samples(self.samples)) if subgraph.is_standard else []
        values = [arrays for arrays in known if arrays is not None]
        return values if len(values) == len(self.samples) else None


def _put_node(region: _Region, rotary: _Rotary) -> None:
    """Replace a region by a rotation of [B, H, T, D], after a transposition if x is [B, T, H, D]."""
    before = region.rotated.producer()
    assert before is not None
    g = Builder.at(before)
    heads, channels = region.shape[rotary.heads_axis], int(region.shape[3])
    shared = _of_three(rotary.cos)[0] == _of_three(rotary.sin)[0] == 1
    spec = RotationSpec(rotary.layout, 2 * rotary.pairs < channels, shared)
    attributes: dict[str, Any] = {}
    if spec.partial:
        turning = [rotary.pairs] * 2 if rotary.layout == "half" else [2 * rotary.pairs]
        attributes = {"heads": heads, "dim": 2 * rotary.pairs, "parts": [*turning, channels - 2 * rotary.pairs]}
    cos, sin = (_angles_of_pairs(g, factor, rotary) for factor in (rotary.cos, rotary.sin))
    exchanged = rotary.heads_axis == 2
    x = g.Transpose(region.x, perm=_EXCHANGED) if exchanged else region.x
    whole = g.op(spec.op_type, x, cos, sin, domain=DOMAIN, shape=x.shape, **spec.attributes, **attributes)
    whole.type = x.type
    if exchanged:
        for user, _ in tuple(region.rotated.uses()):
            if producer(user.outputs[0], "Transpose") and list(user.attributes.get_ints("perm") or ()) == _EXCHANGED:
                ir.convenience.replace_all_uses_with(user.outputs[0], whole, replace_graph_outputs=True)
        whole = g.Transpose(whole, perm=_EXCHANGED)
    ir.convenience.replace_all_uses_with(region.rotated, whole, replace_graph_outputs=True)


def _angles_of_pairs(g: Builder, factor: ir.Value, rotary: _Rotary) -> ir.Value:
    """[B or 1, 1, T, F] of cosines or sines."""
    value = g.Squeeze(factor, [-1]) if _trailing(factor) else factor
    if rotary.doubled:
        end, step = (rotary.pairs, 1) if rotary.layout == "half" else (2 * rotary.pairs, 2)
        value = g.Slice(value, [0], [end], [-1], [step])
    missing = list(range(4 - len(sizes(value) or ())))
    if missing:
        value = g.Unsqueeze(value, missing)
    return g.Transpose(value, perm=_EXCHANGED) if rotary.heads_axis == 2 else value
