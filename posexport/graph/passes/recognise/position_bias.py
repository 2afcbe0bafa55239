"""A bias of positions alone in a mask over pairs, as a score operator of attention."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from posexport.base.refusal import Refusal
from posexport.graph.builder import Builder, Operand
from posexport.graph.edits import take_place
from posexport.graph.ops.attention import AttentionSpec, BiasSpec
from posexport.graph.ops.dropped_scores import LOWEST, drops
from posexport.graph.passes.graph_pass import Context, PassResult
from posexport.graph.passes.recognise import known_bias
from posexport.graph.passes.recognise.content_bias import counted
from posexport.graph.passes.recognise.masks import Nodes, by_mask, is_of_all_heads, summed
from posexport.graph.passes.recognise.recognition import Recognition
from posexport.graph.queries import number, sizes

#: operators that change the axes of a bias, not its numbers
_RESHAPING = ("Identity", "Squeeze", "Unsqueeze", "Expand", "Reshape")


@dataclass
class _Sum:
    """A mask as a sum: values that are added, conditions that fill in a number, and below which it is cut."""

    added: list[ir.Value] = field(default_factory=list)
    #: (condition, number where it holds)
    fills: list[tuple[ir.Value, float]] = field(default_factory=list)


@dataclass(frozen=True)
class _Change:
    """Attention ``nodes`` that share a mask: its position bias becomes ``term``, and ``rest`` is the new mask."""

    nodes: Nodes
    rest: _Sum
    #: names of inputs of an attention node with that term
    term: Mapping[str, ir.Value]


class PositionBias(Recognition):
    """A bias by distance out of the mask, where a module adds ALiBi's or T5's to it.

    Before: ``Add(bias [1, H, T, S], padding [B, 1, 1, S]) -> posexport::Attention (mask over pairs)``
    After:  ``by_distance [H, W], padding -> posexport::Attention (DistanceScores, mask over keys)``

    One number per head and distance is computed once, from which a lowering makes tiles; the rest of the mask is
    padding or causality again. The bias must be one of our encodings' (`known_bias`), and the only one in its mask.
    """

    name = "position-bias"
    description = "a bias of positions in a mask as scores by distance"

    def apply(self, model: ir.Model, context: Context) -> PassResult:
        """Apply the pass; the result counts attention nodes."""
        return _recognise(model)


def _recognise(model: ir.Model) -> PassResult:
    reasons: list[str | None] = []
    names: list[str] = []
    known: dict[ir.Value, known_bias.Known] = {}
    for mask, nodes in by_mask(model, _is_open).items():
        name, reason = _changed(model, mask, nodes, known)
        names += [] if name is None else [name]
        reasons += [] if name is None and reason is None else [reason] * len(nodes)
    result = PassResult.of(reasons)
    return replace(result, recognised=tuple(dict.fromkeys(names)))


def _is_open(node: ir.Node, spec: AttentionSpec) -> bool:
    return not spec.ordered and sizes(node.inputs[0]) is not None


def _changed(
    model: ir.Model,
    mask: ir.Value,
    nodes: Nodes,
    known: dict[ir.Value, known_bias.Known],
) -> tuple[str | None, str | None]:
    """Move the position bias of a mask into the attention nodes.

    Returns:
        The name of the encoding, or the reason why the bias stays in the mask; neither without a bias.
    """
    # decompose the mask: one bias [H, T, T] by positions, and the rest
    total = _Sum()
    _split(mask, total)
    biases = [value for value in total.added if _over_pairs(value) and known_bias.of_positions(model, value)]
    if len(biases) != 1:
        return None, None
    bias, first = biases[0], nodes[0][0]
    heads = first.attributes["heads"].value
    if (sizes(bias) or ())[-3:-2] != (heads,) or any(size != 1 for size in (sizes(bias) or ())[:-3]):
        return None, known_bias.NO_ENCODING.reason
    rest = _Sum([value for value in total.added if value is not bias], total.fills)
    if not all(is_of_all_heads(value) for value in (*rest.added, *(condition for condition, _ in rest.fills))):
        return None, "beside a bias of positions its mask adds what is not [B, 1, 1, S] or [B or 1, 1, T, S]"
    # an encoding of posexport's, or a known formula
    named = _ours(bias) or known.get(bias) or known_bias.find(model, bias, heads)
    if isinstance(named, Refusal):
        return None, named.reason
    if isinstance(named, ir.Node):
        spec = BiasSpec.of(named)
        assert spec is not None
        inputs = spec.named_inputs(named)
        term = {name: value for name, value in inputs.items() if value is not None}
        name, operator = "an encoding of posexport's", spec.scores
    else:
        known[bias] = named
        at = counted(first.inputs[0], first) if first.inputs[0] is not None else None
        assert at is not None
        by_distance, lowest = named.build(first, at)
        term = {"scores_by_distance": by_distance, "scores_lowest": lowest, "qpos": at, "kpos": at}
        name, operator = named.name, "DistanceScores"
    _put(_Change(nodes, rest, term), mask, operator)
    return name, None


def _split(value: ir.Value, total: _Sum) -> None:
    """Add the parts of a mask to ``total``."""
    node = value.producer()
    first, *operands = node.inputs if node is not None and not node.domain else [None]
    if node is not None and first is not None:
        cut = number(operands[0]) if operands else None
        if node.op_type in ("Clip", "Max") and cut is not None and drops(cut) and len(operands) == 1:
            return _split(first, total)
        if node.op_type == "Add" and operands[0] is not None:
            _split(first, total)
            return _split(operands[0], total)
        fill = number(operands[0]) if node.op_type == "Where" else None
        if fill is not None and drops(fill) and operands[1] is not None and number(operands[1]) is None:
            total.fills.append((first, fill))
            return _split(operands[1], total)
    total.added.append(value)
    return None


def _over_pairs(value: ir.Value) -> bool:
    shape = sizes(value)
    return shape is not None and len(shape) in (3, 4) and shape[-3] != 1 and 1 not in shape[-2:]


def _ours(value: ir.Value) -> ir.Node | None:
    """The node of a bias that is ours already."""
    node = value.producer()
    while node is not None and not node.domain and (node.op_type in _RESHAPING or _first_of_one(node)):
        source = node.inputs[0]
        node = None if source is None else source.producer()
    spec = None if node is None else BiasSpec.of(node)
    scaled = spec is not None and spec.score_operator is not None and spec.score_operator.scaled
    return None if spec is None or scaled else node


def _first_of_one(node: ir.Node) -> bool:
    """Whether it takes the only row of a bias [1, H, T, S]."""
    shape = sizes(node.inputs[0]) or ()
    return node.op_type == "Gather" and node.attributes.get_int("axis", 0) == 0 and shape[:1] == (1,)


def _put(change: _Change, mask: ir.Value, operator: str | None) -> None:
    """Write attention with the term; the rest of the mask is computed before the first."""
    first = change.nodes[0][0]
    g = Builder.at(first)
    fills = [g.Where(condition, fill, 0.0) for condition, fill in change.rest.fills]
    rest_of_mask = summed(g, [*change.rest.added, *fills])
    seen_by_the_rest(g, mask, rest_of_mask, first)
    inputs: dict[str, ir.Value] = dict(change.term)
    kind: Any = "none"
    if rest_of_mask is not None:
        kind = "keys" if (sizes(rest_of_mask) or ())[2] == 1 else "pairs"
        inputs["mask"] = g.Max(rest_of_mask, LOWEST)
    for node, old in change.nodes:
        term = replace(old, scores=operator, mask=kind)
        take_place(term.node({**old.named_inputs(node), **inputs}, like=node), node)


def seen_by_the_rest(g: Builder, mask: ir.Value, rest: ir.Value | None, first: ir.Node) -> None:
    """Which queries see any key, from the rest alone, which no bias changes: it is finite."""
    clipped = mask.producer()
    whole = clipped.inputs[0] if clipped is not None and clipped.op_type == "Clip" else None
    q = first.inputs[0]
    assert q is not None
    for reduced in [] if whole is None else list(_any_kept(whole)):
        any_key = reduced.outputs[0]
        shape = sizes(any_key)
        if shape is None or any(_precedes(user, first) for user, _ in any_key.uses()):
            continue
        if rest is None:
            any_kept: Any = np.ones((1, 1, 1), bool)
        else:
            above = g.Cast(g.Greater(rest, -np.inf), to=ir.DataType.INT64)
            any_kept = g.Cast(g.ReduceMax(above, [-1], keepdims=0), to=ir.DataType.BOOL)
        # as many axes of size 1 as before: nodes of fixed sizes may follow
        parts = [[1] if size == 1 else _size(g, first, q, axis) for axis, size in enumerate(shape)]
        ir.convenience.replace_all_uses_with(any_key, g.op("Expand", any_kept, g.shape(*parts), shape=shape))


def _size(g: Builder, node: ir.Node, q: ir.Value, axis: int) -> Operand:
    """The size of an axis of the queries, read from an input of the graph where one has it: rows of tokens follow."""
    size = (sizes(q) or ())[axis]
    if isinstance(size, int):
        return [size]
    given = (value for value in (node.graph.inputs if node.graph is not None else ()) if size in (sizes(value) or ()))
    source = next(given, q)
    return g.size(source, (sizes(source) or ()).index(size))


def _precedes(node: ir.Node, other: ir.Node) -> bool:
    """Whether ``node`` comes first in the graph."""
    assert other.graph is not None
    return next(candidate for candidate in other.graph if candidate in (node, other)) is node


def _any_kept(whole: ir.Value) -> Iterator[ir.Node]:
    """Nodes that say which rows of a mask have an element above -inf."""
    for user, _ in whole.uses():
        if user.op_type == "Greater" and number(user.inputs[1]) == -np.inf:
            for cast, _ in user.outputs[0].uses():
                for reduced, _ in cast.outputs[0].uses() if cast.op_type == "Cast" else ():
                    if reduced.op_type == "ReduceMax":
                        yield from (last for last, _ in reduced.outputs[0].uses() if last.op_type == "Cast")
