"""Which tokens of a batch are real, and whether leaving the others out is worth it: computed once for a graph.

All from the padding mask, before any layer. Where it does not pay, all tokens count as real, so that what works on rows
of real tokens has the same form either way.
"""

from dataclasses import dataclass

import onnx_ir as ir

from posexport.graph.builder import Builder

#: tokens of padding a row, on average, that pay for attention row by row: an iteration takes about as long as
#: one token does in a layer of 384 channels on two cores, or eight on sixteen
_LEAST = 8
_BOOL, _INT64 = ir.DataType.BOOL, ir.DataType.INT64


@dataclass(frozen=True)
class RealTokens:
    """Of a batch of B rows of T tokens, N of them real; int64 but for ``pays``.

    Attributes:
        pays: padding is left out, bool [].
        mask: 1 for a real token, [B, T].
        keep: places of the tokens that are computed among all of the batch, [N]; all B T where it does not pay.
        rows: those with a real token, [R]; nothing from here on where it does not pay.
        first: of each row's tokens the first real one, [B].
        lengths: real tokens of each row, [B].
        ends: where each row ends among all real tokens, [B].
    """

    pays: ir.Value
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
    real = g.Cast(g.Cast(mask, to=_BOOL), to=_INT64, name="real_tokens")
    number = g.ReduceSum(real, keepdims=0)
    whole = g.Size(real)
    rows = g.scalar(g.size(real, 0))
    is_enough = g.GreaterOrEqual(g.Sub(whole, number), g.Mul(rows, _LEAST))

    def bounds() -> tuple[ir.Value, ir.Value]:
        first = g.ArgMax(real, axis=1, keepdims=0)
        return first, g.ReduceSum(real, [1], keepdims=0)

    def are_contiguous() -> ir.Value:
        first, lengths = bounds()
        last = g.ArgMax(real, axis=1, keepdims=0, select_last_index=1)
        spans = g.Add(g.Sub(last, first), 1)
        fits = g.Or(g.Equal(spans, lengths), g.Equal(lengths, 0))
        if from_first:
            fits = g.And(fits, g.Cast(g.Gather(real, 0, axis=1), to=_BOOL))
        all_fit = g.ReduceMin(g.Cast(fits, to=_INT64), keepdims=0)
        return g.And(g.Cast(all_fit, to=_BOOL), g.Greater(number, 0))

    pays = g.if_(
        is_enough,
        are_contiguous,
        lambda: is_enough,
        branches=("much_padding", "little_padding"),
        name="padding_is_dropped",
        types=[_BOOL],
    )

    def dropped() -> tuple[ir.Value, ...]:
        first, lengths = bounds()
        flat = g.Squeeze(g.NonZero(g.Reshape(real, [-1])), [0])
        return flat, g.Squeeze(g.NonZero(lengths), [0]), first, lengths, g.CumSum(lengths, 0)

    def all_tokens() -> tuple[ir.Value, ...]:
        every = g.Range(0, whole, 1)
        return (every, *[g.Slice(every, [0], [0])] * (len(names) - 1))

    names = ("kept_tokens", "rows_with_tokens", "first_tokens", "row_lengths", "row_ends")
    tables = g.if_(
        pays, dropped, all_tokens, branches=("real_only", "all_tokens"), name=names, types=[_INT64] * len(names)
    )
    return RealTokens(pays, real, *tables)
