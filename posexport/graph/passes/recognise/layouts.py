"""Attention in other layouts as products of [B, H, T, D] around a Softmax over the last axis.

Shape letters: B batch, H heads, T queries, S keys, D channels of a head. A layout is a tuple: the axis of the product's
scores that each axis of a value is.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from posexport.graph.builder import Builder
from posexport.graph.edits import replace
from posexport.graph.passes.recognise.score_chain import Chain, Step, chain
from posexport.graph.passes.recognise.without_keys import keep_replacing
from posexport.graph.queries import axis, sizes

Layout = tuple[int, ...]
Shape = tuple[int | str, ...]
_FOUR = 4


def put_in_order(softmax: ir.Node) -> None:
    """Rewrite the attention around ``softmax`` with scores [B, H, T, S], if it has another layout.

    Before: ``MatMul -> Transpose -> Softmax(axis=1) -> Transpose -> MatMul``
    After:  ``Transpose, Reshape -> MatMul -> Softmax(axis=-1) -> MatMul -> Reshape, Transpose``

    1. Transposes between the products are moved to the masks. A Softmax over the queries of the product gets its
       transpose.
    2. Axes before [T, S]: the last one of known size is heads, all others are the batch.
    3. Scores less their highest one, which changes no probability, are the scores.
    4. Probabilities that the mask of the scores sets to 0: a query without keys reads zeros.
    5. Scores that several Softmax read, as in bidirectional attention, are computed for each.
    6. ``v @ probs.mT`` of values with channels first, [B, H, D, S], is the transpose of ``probs @ v.mT``.
    7. Biases that are added in another shape (of rows and columns of an image, in SAM) get the shape of the scores.
    """
    attention = chain(softmax)
    shape = None if attention is None else sizes(attention.product.outputs[0])
    if attention is None or shape is None or not _masks_are_known(attention):
        return
    keys = _keys(attention, shape)
    if keys is None:
        return
    is_usual = len(shape) < _FOUR or (len(shape) == _FOUR and isinstance(shape[1], int))
    swapped = keys != len(shape) - 1
    if attention.is_unusual or swapped or not is_usual:
        _Rewriting(attention, shape, swapped).write()


def _keys(attention: Chain, shape: Shape) -> int | None:
    """The axis of keys in the product's scores of ``shape``; None if the layouts of the chain do not fit them."""
    rank = len(shape)
    layout = tuple(range(rank))
    for step in attention.steps:
        layout = _after(step.node, layout)
        step.layout = layout
        if not _are_same(sizes(step.output) or (), tuple(shape[at] for at in layout)):
            return None  # a mask has more rows or heads
    keys = layout[axis(attention.softmax, -1)]
    for node in attention.after:
        layout = _after(node, layout)
    # the product with values reads probabilities in the order of the scores
    queries = 2 * rank - 3 - keys
    expected = (*range(rank - 2), *((keys, queries) if attention.values_first else (queries, keys)))
    fits = rank > 2 and keys >= rank - 2 and layout == expected
    return keys if fits and _have_all_axes(attention, shape) else None


def _are_same(shape: Shape, scores: Shape) -> bool:
    """Whether a mask leaves the shape of ``scores``; ``mask[:T, :T]`` of 40 rows has the size ``Min(40, T)``."""
    pairs = list(zip(shape, scores, strict=False))
    same = all(size == full or re.fullmatch(rf"Min\(\d+, {re.escape(str(full))}\)", str(size)) for size, full in pairs)
    return len(shape) == len(scores) and same


def _masks_are_known(attention: Chain) -> bool:
    """Whether all sizes of the masks, biases and factors between the products are known."""
    of_steps = [x for step in attention.steps for x in (*step.biases, *step.node.inputs) if x is not None]
    return all(sizes(x) is not None for x in (*of_steps, *attention.zeroed))


def _have_all_axes(attention: Chain, shape: Shape) -> bool:
    """Whether queries, keys and values have the axes of the scores before the last two, of their size or 1."""
    first, second, v = (sizes(x) or () for x in (*attention.product.inputs, attention.values))
    if not len(first) == len(second) == len(v) == len(shape):
        return False  # a weight for all rows
    lead = len(shape) - 2
    of_product = all(full in pair for full, *pair in zip(shape[:lead], first, second, strict=False))
    return of_product and all(
        size in (full, 1) for x in (first, second, v) for size, full in zip(x[:lead], shape, strict=False)
    )


def _after(node: ir.Node, layout: Layout) -> Layout:
    if node.op_type != "Transpose":
        return layout
    permutation = node.attributes.get_ints("perm") or range(len(layout))[::-1]
    return tuple(layout[at] for at in permutation)


@dataclass
class _Rewriting:
    """Writes the attention with scores of [B, H, T, S], or [B, T, S] where no axis before them has a known size.

    Attributes:
        shape: of the product's scores.
        swapped: whether the product's columns are queries.
    """

    attention: Chain
    shape: Shape
    swapped: bool

    def __post_init__(self) -> None:
        rank = len(self.shape)
        queries, keys = (rank - 1, rank - 2) if self.swapped else (rank - 2, rank - 1)
        lead = tuple(range(rank - 2))
        self.is_joined = rank > _FOUR or (rank == _FOUR and not isinstance(self.shape[1], int))
        # the last axis of known size, above 1 where there is one; the rest is the batch
        known = [at for at in lead if isinstance(self.shape[at], int)]
        known = known[len(known) == len(lead) :]
        heads = [*[at for at in known if self.shape[at] == 1], *[at for at in known if self.shape[at] != 1]][-1:]
        self.heads = heads[0] if heads and self.is_joined else None
        batch = tuple(at for at in lead if at != self.heads) if self.is_joined else lead
        self.batch = batch
        #: the axes of the product's scores in the order [B.., H, T, S]
        self.order = (*batch, *heads, queries, keys) if self.is_joined else (*lead, queries, keys)
        self.g = Builder.at(self.attention.context)

    def write(self) -> None:
        g, attention = self.g, self.attention
        first, second = attention.product.inputs
        v = self._transposed(attention.values) if attention.values_first else attention.values
        assert first is not None
        assert second is not None
        if self.swapped:
            first, second = self._transposed(second), self._transposed(first)
        q, k, v = self._joined_operand(first), self._joined_operand(second), self._joined_operand(v)
        # scores, step by step
        scores_shape = [*(sizes(q) or ())[:-1], (sizes(k) or ())[-1]]
        value = g.op("MatMul", q, k, shape=scores_shape)
        for step in attention.steps:
            if step.node.op_type != "Transpose":
                value = self._step(step, value, scores_shape)
        probs = g.op("Softmax", value, axis=-1, shape=scores_shape)
        keep_replacing(probs, attention.softmax)
        context = g.op("MatMul", probs, v, shape=[*scores_shape[:-1], (sizes(v) or ())[-1]])
        for condition in attention.zeroed:
            masked = g.Cast(self._in_order(condition, tuple(range(len(self.shape)))), to=int(ir.DataType.INT32))
            none = g.Cast(g.ReduceMin(masked, [-1]), to=int(ir.DataType.BOOL))
            context = g.op("Where", none, 0.0, context, shape=context.shape)
        result = attention.context.outputs[0]
        context = self._apart(context, result)
        replace(result, self._transposed(context) if attention.values_first else context)

    def _step(self, step: Step, scores: ir.Value, shape: Sequence[int | str]) -> ir.Value:
        """The node of a step with ``scores`` and its other operands in order."""
        g = self.g
        if step.biases:
            total = step.biases[0]
            for bias in step.biases[1:]:
                total = g.Add(total, bias)
            operands = [
                scores,
                self._in_order(g.op("Reshape", total, step.shape, shape=step.output.shape), step.layout),
            ]
            return g.op("Add", *operands, shape=shape)
        others = [
            x if at == step.at or x is None else self._in_order(x, step.layout) for at, x in enumerate(step.node.inputs)
        ]
        others[step.at] = scores
        return g.op(step.node.op_type, *others, shape=shape)

    def _in_order(self, x: ir.Value, layout: Layout) -> ir.Value:
        """A mask, bias or factor of scores with ``layout``, as [B or 1, H or 1, T or 1, S or 1]."""
        g, shape = self.g, sizes(x) or ()
        if all(size == 1 for size in shape):
            return g.Reshape(x, []) if shape else x
        if len(shape) < len(layout):
            missing = len(layout) - len(shape)
            x, shape = (
                g.op("Unsqueeze", x, list(range(missing)), shape=(*[1] * missing, *shape)),
                (*[1] * missing, *shape),
            )
        permutation = [layout.index(at) for at in self.order]
        if permutation != sorted(permutation):
            shape = tuple(shape[at] for at in permutation)
            x = g.op("Transpose", x, perm=permutation, shape=shape)
        return self._joined(x, shape) if self.is_joined else x

    def _joined_operand(self, x: ir.Value) -> ir.Value:
        """Queries, keys or values with all axes of the batch as one, then heads."""
        if not self.is_joined:
            return x
        lead, rank = [*self.order[:-2]], len(self.shape)
        shape = sizes(x) or ()
        permutation = [*lead, rank - 2, rank - 1]
        if permutation != sorted(permutation):
            shape = tuple(shape[at] for at in permutation)
            x = self.g.op("Transpose", x, perm=permutation, shape=shape)
        return self._joined(x, shape, always=True)

    def _joined(self, x: ir.Value, shape: Shape, *, always: bool = False) -> ir.Value:
        """[B.., H, .., ..] as [B, H, .., ..]; the batch stays 1 where all its axes are, unless ``always``."""
        g, count = self.g, len(self.batch)
        full = tuple(self.shape[at] for at in self.batch)
        batch: list[int | str] = [1]
        if always or any(size != 1 for size in shape[:count]):
            if shape[:count] != full:
                x = g.op(
                    "Expand",
                    x,
                    g.shape(*self._batch_sizes(), *[[1]] * (len(shape) - count)),
                    shape=[*full, *shape[count:]],
                )
            batch = ["*".join(f"({size})" for size in full)]
        last = [[size] if isinstance(size, int) else g.size(x, count + at) for at, size in enumerate(shape[count:])]
        return g.op("Reshape", x, g.shape([-1], *last), shape=[*batch, *shape[count:]])

    def _batch_sizes(self) -> list[ir.Value]:
        """The sizes of the batch's axes: of the first factor of the product that has all rows."""
        factors = [x for x in self.attention.product.inputs if x is not None]
        return [
            next(self.g.size(x, at) for x in factors if (sizes(x) or ())[at] == self.shape[at]) for at in self.batch
        ]

    def _transposed(self, x: ir.Value) -> ir.Value:
        rank, shape = len(self.shape), sizes(x) or ()
        permutation = [*range(rank - 2), rank - 1, rank - 2]
        return self.g.op("Transpose", x, perm=permutation, shape=[shape[at] for at in permutation])

    def _apart(self, context: ir.Value, result: ir.Value) -> ir.Value:
        """The context [B, H, T, D] in the layout of ``result``."""
        if not self.is_joined:
            return context
        g, rank, shape = self.g, len(self.shape), sizes(context) or ()
        lead = self.order[:-2]
        last = [[size] if isinstance(size, int) else g.size(context, at) for at, size in enumerate(shape) if at]
        apart = g.op(
            "Reshape",
            context,
            g.shape(*self._batch_sizes(), *last),
            shape=[*(self.shape[at] for at in self.batch), *shape[1:]],
        )
        permutation = [*(lead.index(at) for at in range(rank - 2)), rank - 2, rank - 1]
        return apart if permutation == sorted(permutation) else g.Transpose(apart, perm=permutation)
