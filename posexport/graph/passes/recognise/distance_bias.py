"""Windows and any bias by distance in a mask over pairs of tokens, as a score operator of attention."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from posexport.base.refusal import Refusal
from posexport.base.spec import SEQUENCE
from posexport.graph.builder import Builder
from posexport.graph.edits import take_place
from posexport.graph.ops.attention import AttentionSpec, Mask
from posexport.graph.ops.dropped_scores import DROPPED_DISTANCE, LOWEST, drops
from posexport.graph.partial import Array, Subgraph
from posexport.graph.passes.graph_pass import Context, PassResult
from posexport.graph.passes.recognise.content_bias import counted
from posexport.graph.passes.recognise.far_pairs import far_pairs
from posexport.graph.passes.recognise.known_bias import of_positions
from posexport.graph.passes.recognise.mask_structure import may_differ_beyond
from posexport.graph.passes.recognise.masks import by_mask, is_of_all_heads, summed
from posexport.graph.passes.recognise.position_bias import seen_by_the_rest
from posexport.graph.passes.recognise.recognition import Recognition
from posexport.graph.queries import number, sizes
from posexport.graph.single_row import SingleRow

#: tokens that a bias is computed for, the last two of few heads and of many
_SHORT, _FAR, _NEARER, _FEW = (2, 7, 150), 1024, 515, 16
#: roundings of float32 of the largest number of a query's row
_ROUNDINGS = 8 * float(np.finfo(np.float32).eps)
_END = 2**63 - 1
_NO_DISTANCE = Refusal("what its mask adds by positions alone depends on more than the distance")
_DIAGONAL = Refusal("what its mask adds by positions alone drops a query's own key")
_BESIDE = "beside a bias by distance its mask adds what is not [B, 1, 1, S] or [B or 1, 1, T, S]"
_NOT_COMPUTED = Refusal("what its mask adds by positions alone could not be computed from sizes")


@dataclass(frozen=True)
class _Term:
    """A value that is added, or a condition that drops scores where it is ``drops``."""

    value: ir.Value
    drops: bool | None = None

    @property
    def over_pairs(self) -> bool:
        """Whether its last two axes are the same tokens."""
        shape = sizes(self.value) or ()
        return len(shape) > 1 and isinstance(shape[-1], str) and shape[-1] == shape[-2]

    def added(self, g: Builder) -> ir.Value:
        """What it adds to scores."""
        if self.drops is None:
            return self.value
        return g.Where(self.value, LOWEST, 0.0) if self.drops else g.Where(self.value, 0.0, LOWEST)


@dataclass
class _Terms:
    """A mask as a sum: a bias of positions alone over pairs of tokens, and the rest."""

    of_pairs: list[_Term] = field(default_factory=list)
    rest: list[_Term] = field(default_factory=list)


class DistanceBias(Recognition):
    """Numbers by distance in place of a mask over pairs, and causality where later keys are dropped.

    Before: ``Where(i - j < 128 And padding, 0, -inf) [B, 1, T, S] -> posexport::Attention (mask over pairs)``
    After:  ``by_distance [H, W], padding [B, 1, 1, S] -> posexport::Attention (DistanceScores, mask over keys)``

    For biases that no encoding of posexport has (`position_bias`): windows, ALiBi of other slopes, tables by distance.

    1. The mask is a sum of terms that add or, by Where, drop; conditions joined by And or Or are separate terms.
    2. The terms that follow from sizes alone and are over pairs of tokens are computed at several lengths. Minus the
       element of the diagonal, which no softmax sees, they depend on the distance alone at every length.
    3. No number and no table in what computes them is beyond the longest length, unless no input is longer. Beyond
       larger numbers a few queries are computed, where pairs are computed element by element.
    4. The numbers by distance are the last query's row and, if later keys are not dropped, the first one's, computed
       without the rows between.
    """

    name = "distance-bias"
    description = "windows and biases by distance in a mask as scores by distance"

    def apply(self, model: ir.Model, context: Context) -> PassResult:
        """Apply the pass; the result counts attention nodes."""
        bounds = [bound for bound in context.bounds if bound.axis == SEQUENCE and bound.kind == "maximum"]
        limit = bounds[0].number if bounds else None
        reasons: list[str | None] = []
        names: list[str] = []
        for mask, nodes in by_mask(model, _is_open).items():
            terms = _Terms()
            _split(model, mask, terms)
            heads = nodes[0][0].attributes["heads"].value
            known = _by_distance(model, terms.of_pairs, heads, limit) if terms.of_pairs else None
            if isinstance(known, Refusal):
                reasons += [known.reason] * len(nodes)
            elif known is None or not known.name:
                continue  # `mask_structure` knows causality
            elif not all(is_of_all_heads(term.value) for term in terms.rest):
                reasons += [_BESIDE] * len(nodes)
            else:
                _change(nodes, mask, terms, known)
                names.append(known.name)
                reasons += [None] * len(nodes)
        return replace(PassResult.of(reasons), recognised=tuple(dict.fromkeys(names)))


def _is_open(node: ir.Node, spec: AttentionSpec) -> bool:
    return not spec.causal and not spec.scores and sizes(node.inputs[0]) is not None


def _split(model: ir.Model, value: ir.Value, terms: _Terms) -> None:
    """Rule 1: add the terms of a mask to ``terms``."""
    node = value.producer()
    if node is not None and not node.domain:
        first, *operands = node.inputs
        if node.op_type == "Add" and first is not None and operands[0] is not None:
            _split(model, first, terms)
            return _split(model, operands[0], terms)
        cut = number(operands[0]) if len(operands) == 1 else None
        if node.op_type in ("Clip", "Max") and first is not None and cut is not None and drops(cut):
            return _split(model, first, terms)
        if node.op_type == "Where" and first is not None:
            yes, no = operands
            for where, fill, other in ((True, yes, no), (False, no, yes)):
                dropped, rest = number(fill), number(other)
                if dropped is None or not drops(dropped) or (rest is not None and rest != 0):
                    continue
                _split_condition(model, first, terms, drops_where=where)
                return None if rest is not None or other is None else _split(model, other, terms)
    _add(model, _Term(value), terms)
    return None


def _split_condition(model: ir.Model, value: ir.Value, terms: _Terms, *, drops_where: bool) -> None:
    node = value.producer()
    joined = "Or" if drops_where else "And"
    if (always := number(value)) is not None and bool(always) != drops_where:
        return
    if node is not None and not node.domain and node.op_type in (joined, "Not"):
        for operand in node.inputs:
            assert operand is not None
            _split_condition(model, operand, terms, drops_where=drops_where != (node.op_type == "Not"))
    else:
        _add(model, _Term(value, drops_where), terms)


def _add(model: ir.Model, term: _Term, terms: _Terms) -> None:
    (terms.of_pairs if term.over_pairs and of_positions(model, term.value) else terms.rest).append(term)


@dataclass(frozen=True)
class _ByDistance:
    """A bias by distance: its name, whether it drops later keys, whether it drops any."""

    name: str
    is_causal: bool
    drops_any: bool


def _by_distance(model: ir.Model, terms: Sequence[_Term], heads: int, limit: int | None) -> _ByDistance | Refusal:
    """Rules 2 and 3: the bias that the terms sum to, or why it is no bias by distance."""
    # of the same tokens, one row for the batch, one head or all
    shapes = [(1,) * (4 - len(sizes(term.value) or ())) + (sizes(term.value) or ()) for term in terms]
    tokens = shapes[0][3]
    fits = all(shape[0] == 1 and shape[1] in (1, heads) and shape[2] == shape[3] == tokens for shape in shapes)
    subgraph = Subgraph(model, [term.value for term in terms])
    if not fits or not isinstance(tokens, str) or not subgraph.is_closed:
        return _NOT_COMPUTED
    longest = _FAR if max(int(shape[1]) for shape in shapes) <= _FEW else _NEARER
    named = {size for value in subgraph.inputs for size in sizes(value) or ()}
    tokens = tokens if tokens in named else SEQUENCE  # Min(300, T) of a buffer
    longest = longest if limit is None or tokens != SEQUENCE else min(limit, longest)

    # of the longest input: what each distance adds
    looked = _of_all(subgraph, terms, tokens, longest)
    if isinstance(looked, Refusal):
        return looked
    numbers_HW = _numbers(looked)
    for length in sorted({min(length, longest) for length in _SHORT} | {longest}):
        relative = looked if length == longest else _of_all(subgraph, terms, tokens, length)
        if isinstance(relative, Refusal):
            return relative
        if not _is_by_distance(relative, np.arange(length), numbers_HW):
            return _NO_DISTANCE
    is_whole = limit is not None and tokens == SEQUENCE and longest >= limit
    if is_whole or not may_differ_beyond(subgraph.model.graph, longest):
        return _named(numbers_HW, longest)

    # of more tokens a few queries, which must agree with what fewer showed
    far = far_pairs(model, [term.value for term in terms], tokens, longest, limit) if tokens == SEQUENCE else None
    if far is None or any(value.shape[-2:] != (len(far.queries), far.length) for value in far.values):
        return Refusal(f"its mask has a number or a table beyond the {longest} tokens that were looked at")
    relative = _relative(far.values, terms, far.queries, far.length)
    if isinstance(relative, Refusal):
        return relative
    numbers_HW = _numbers(relative)
    agrees = _is_by_distance(looked, np.arange(longest), numbers_HW)
    if not agrees or not _is_by_distance(relative, far.queries, numbers_HW):
        return _NO_DISTANCE
    return _named(numbers_HW, far.length)


def _numbers(relative: Array) -> Array:
    """What each distance adds, [H, 2 T - 1]; the first and the last of the rows [H, R, T] decide."""
    return np.concatenate([relative[:, 0, :0:-1], relative[:, -1, ::-1]], 1)


def _is_by_distance(relative: Array, queries: Array, numbers_HW: Array) -> bool:
    """Whether rows [H, R, T] of ``queries`` [R] are the numbers of their distances."""
    zero = numbers_HW.shape[1] // 2
    expected = numbers_HW[:, zero + queries[:, None] - np.arange(relative.shape[2])]
    is_kept = np.isfinite(expected)
    off = np.abs(np.where(is_kept, relative, 0) - np.where(is_kept, expected, 0))
    size = np.abs(numbers_HW[np.isfinite(numbers_HW)]).max(initial=0)
    return not ((np.isfinite(relative) != is_kept).any() or (off > _ROUNDINGS * size).any())


def _of_all(subgraph: Subgraph, terms: Sequence[_Term], tokens: str, length: int) -> Array | Refusal:
    """`_relative` of all pairs of ``length`` tokens."""
    values = subgraph.run({}, {tokens: length})
    if values is None or any(value.shape[-2:] != (length, length) for value in values):
        return _NOT_COMPUTED
    return _relative(values, terms, np.arange(length), length)


def _relative(values: Sequence[Array], terms: Sequence[_Term], queries: Array, length: int) -> Array | Refusal:
    """The sum [H, R, T] at ``queries`` [R] minus its diagonal, -inf where it drops keys; or why there is none."""
    total = np.zeros((1, len(queries), length), np.float32)
    for term, value in zip(terms, values, strict=True):
        added = value.reshape(-1, len(queries), length)
        if term.drops is not None:
            added = np.where(added == term.drops, np.float32(LOWEST), np.float32(0))
        total = total + np.maximum(added, LOWEST / 4)
    diagonal = np.take_along_axis(total, queries[None, :, None], 2)
    if drops(diagonal).any() or np.isnan(total).any():
        return _DIAGONAL
    return np.where(drops(total), -np.inf, total - diagonal)


def _named(numbers_HW: Array, longest: int) -> _ByDistance:
    """The bias with a name for the manifest; none where it is causality alone, or nothing."""
    is_kept = np.isfinite(numbers_HW)
    is_causal = not is_kept[:, : longest - 1].any() and longest > 1
    distances = np.flatnonzero(is_kept.any(0)) - (longest - 1)
    low, high = int(distances.min()), int(distances.max())
    is_open = high == longest - 1 and (is_causal or low == 1 - longest)
    if (numbers_HW[is_kept] != 0).any():
        name = f"bias by distance of {len(numbers_HW)} heads"
        name += ", causal" * is_causal
    else:
        is_bare = is_open and is_kept[:, longest - 1 :].all() and (is_causal or is_kept.all())
        name = "" if is_bare else f"window of distances {low} to {high}"
    return _ByDistance(name, is_causal, not is_kept[:, longest - 1 :].all() or (not is_causal and not is_kept.all()))


def _change(nodes: Sequence[tuple[ir.Node, AttentionSpec]], mask: ir.Value, terms: _Terms, known: _ByDistance) -> None:
    """Rule 4: write attention with numbers by distance, and the rest of the mask."""
    first = nodes[0][0]
    g, q = Builder.at(first), first.inputs[0]
    assert q is not None
    whole = summed(g, (term.added(g) for term in terms.of_pairs))
    assert whole is not None
    rows = SingleRow(g)
    by_distance = g.Slice(_of_query(g, rows, whole, last=True), [-1], [-_END], [3], [-1])
    at = counted(q, first)
    lowest: ir.Value = g.Sub([1], g.Shape(at)) if not known.is_causal else g.Cast([0], to=ir.DataType.INT64)
    if not known.is_causal:
        before = g.Slice(_of_query(g, rows, whole, last=False), [-1], [0], [3], [-1])
        by_distance = g.Concat(before, by_distance, axis=3)
    if known.drops_any:
        by_distance = g.Max(by_distance, DROPPED_DISTANCE)
    of_heads = (sizes(whole) or ())[1]
    distances = f"distances_of_{mask.name}"
    by_distance = g.op("Reshape", by_distance, [int(of_heads), -1], shape=[of_heads, distances])

    # the rest of the mask, and attention
    rest = summed(g, (term.added(g) for term in terms.rest))
    if not known.drops_any and not known.is_causal:
        seen_by_the_rest(g, mask, rest, first)
    kind: Mask = "none" if rest is None else "keys" if (sizes(rest) or ())[2] == 1 else "pairs"
    inputs: dict[str, ir.Value] = {"scores_by_distance": by_distance, "scores_lowest": lowest, "qpos": at, "kpos": at}
    if rest is not None:
        inputs["mask"] = g.Max(rest, LOWEST)
    for node, old in nodes:
        changed = replace(old, scores="DistanceScores", mask=kind, causal=known.is_causal)
        take_place(changed.node({**old.named_inputs(node), **inputs}, like=node), node)


def _of_query(g: Builder, rows: SingleRow, whole: ir.Value, *, last: bool) -> ir.Value:
    """The row of the last or the first query, [1, H, 1, S], minus its diagonal element."""
    bias = rows.of(whole, 2, last=last)
    return g.Sub(bias, rows.of(bias, 3, last=last))
