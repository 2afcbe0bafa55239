"""Computes the indices of real new tokens of a decoder's call, from the mask over past and new tokens."""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from posexport.graph.builder import Builder

_BOOL, _INT64 = ir.DataType.BOOL, ir.DataType.INT64
_END = int(np.iinfo(np.int64).max)
#: one in this many new tokens must be padding: re-padding of logits takes up to a twentieth of the time
_SHARE = 8


@dataclass(frozen=True)
class NewTokens:
    """The computed tokens of a call: N of B rows with T new tokens; int64 except ``unpads``.

    Attributes:
        unpads: whether enough tokens are padding, and not all, bool [].
        whole: number of all new tokens B T, [1].
        keep: indices of the computed tokens, [N]; all B T if unpadding does not pay.
        indices: ``keep`` as [N, 1], for ScatterND.
    """

    unpads: ir.Value
    whole: ir.Value
    keep: ir.Value
    indices: ir.Value


def find(g: Builder, mask: ir.Value, tokens: ir.Value) -> NewTokens:
    """Compute the real new tokens.

    ``mask``: [B, S] over past and new tokens, not 0 for real ones. ``tokens``: any value of shape [B, T, ...].
    """
    new = g.slice(g.Cast(mask, to=_BOOL), g.Neg(g.size(tokens, 1)), [_END], 1)
    real = g.NonZero(g.Reshape(new, [-1]), name="real_new_tokens")
    number, whole = g.Size(real), g.Size(new)
    is_enough = g.LessOrEqual(g.Mul(number, _SHARE), g.Mul(whole, _SHARE - 1))
    unpads = g.And(is_enough, g.Greater(number, 0), name="new_padding_is_dropped")
    keep = g.if_(
        unpads,
        lambda: g.Squeeze(real, [0]),
        lambda: g.Range(0, whole, 1),
        branches=("real_only", "all_tokens"),
        name="kept_tokens",
        types=[_INT64],
    )
    return NewTokens(unpads, g.Reshape(whole, [1]), keep, indices(g, keep))


def indices(g: Builder, keep: ir.Value) -> ir.Value:
    """Of ScatterND, which puts rows of the tokens ``keep`` [N] back, [N, 1]."""
    return g.Unsqueeze(keep, [1])
