"""Computes the indices of real tokens, and whether unpadding a batch pays, from the padding mask before any layer.

If it does not pay, all tokens count as real, so that the nodes on rows of real tokens are the same in both cases.
"""

from dataclasses import dataclass

import onnx_ir as ir

from posexport.graph.builder import Builder

#: padding tokens per row, on average, for which attention row by row pays: an iteration costs as much as one token
#: in a layer of 384 channels on two cores, or eight on sixteen
_LEAST = 8
_BOOL, _INT64 = ir.DataType.BOOL, ir.DataType.INT64


@dataclass(frozen=True)
class RealTokens:
    """The real tokens of a batch: N of B rows with T tokens; int64 except ``unpads``.

    Attributes:
        unpads: whether unpadding pays, bool [].
        mask: 1 for a real token, [B, T].
        keep: indices of the computed tokens in the flat batch, [N]; all B T if unpadding does not pay.
        rows: rows with a real token, [R]; this and the following are empty if unpadding does not pay.
        first: index of the first real token in each row, [B].
        lengths: number of real tokens in each row, [B].
        ends: end of each row in the sequence of all real tokens, [B].
    """

    unpads: ir.Value
    mask: ir.Value
    keep: ir.Value
    rows: ir.Value
    first: ir.Value
    lengths: ir.Value
    ends: ir.Value


def find(g: Builder, mask: ir.Value, *, from_first: bool) -> RealTokens:
    """Compute the real tokens from the mask [B, T], which is not 0 for real tokens.

    Unpadding pays with enough padding, if the real tokens of each row are contiguous and, with ``from_first``, begin at
    its first slot.
    """
    # enough padding?
    real = g.Cast(g.Cast(mask, to=_BOOL), to=_INT64, name="real_tokens")
    number = g.ReduceSum(real, keepdims=0)
    whole = g.Size(real)
    rows = g.scalar(g.size(real, 0))
    is_enough = g.GreaterOrEqual(g.Sub(whole, number), g.Mul(rows, _LEAST))

    def bounds() -> tuple[ir.Value, ir.Value]:
        first = g.ArgMax(real, axis=1, keepdims=0)
        return first, g.ReduceSum(real, [1], keepdims=0)

    # and are the real tokens of each row contiguous?
    def are_contiguous() -> ir.Value:
        first, lengths = bounds()
        last = g.ArgMax(real, axis=1, keepdims=0, select_last_index=1)
        spans = g.Add(g.Sub(last, first), 1)
        fits = g.Or(g.Equal(spans, lengths), g.Equal(lengths, 0))
        if from_first:
            fits = g.And(fits, g.Cast(g.Gather(real, 0, axis=1), to=_BOOL))
        all_fit = g.ReduceMin(g.Cast(fits, to=_INT64), keepdims=0)
        return g.And(g.Cast(all_fit, to=_BOOL), g.Greater(number, 0))

    unpads = g.if_(
        is_enough,
        are_contiguous,
        lambda: is_enough,
        branches=("much_padding", "little_padding"),
        name="padding_is_dropped",
        types=[_BOOL],
    )

    # indices of the real tokens, or of all
    def dropped() -> tuple[ir.Value, ...]:
        first, lengths = bounds()
        flat = g.Squeeze(g.NonZero(g.Reshape(real, [-1])), [0])
        return flat, g.Squeeze(g.NonZero(lengths), [0]), first, lengths, g.CumSum(lengths, 0)

    def all_tokens() -> tuple[ir.Value, ...]:
        every = g.Range(0, whole, 1)
        return (every, *[g.Slice(every, [0], [0])] * (len(names) - 1))

    names = ("kept_tokens", "rows_with_tokens", "first_tokens", "row_lengths", "row_ends")
    tables = g.if_(
        unpads, dropped, all_tokens, branches=("real_only", "all_tokens"), name=names, types=[_INT64] * len(names)
    )
    return RealTokens(unpads, real, *tables)
