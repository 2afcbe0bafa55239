"""Computes the indices of real new tokens of a decoder's call, from the mask over past and new tokens."""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from posexport.graph.builder import Builder

_BOOL = ir.DataType.BOOL
_END = int(np.iinfo(np.int64).max)
#: one in this many new tokens must be padding: re-padding of logits takes up to a twentieth of the time
_SHARE = 8


@dataclass(frozen=True)
class NewTokens:
    """The computed tokens of a call: N of B rows with T new tokens; int64 except the first two.

    Attributes:
        unpads: whether enough tokens are padding, and not all, bool [].
        kept: which tokens are computed, bool [B, T]; all if unpadding does not pay.
        whole: number of all new tokens B T, [1].
        keep: indices of the computed tokens, [N].
    """

    unpads: ir.Value
    kept: ir.Value
    whole: ir.Value
    keep: ir.Value


def find(g: Builder, mask: ir.Value, tokens: ir.Value) -> NewTokens:
    """Compute the real new tokens.

    ``mask``: [B, S] over past and new tokens, not 0 for real ones. ``tokens``: any value of shape [B, T, ...].
    """
    real = g.slice(g.Cast(mask, to=_BOOL), g.Neg(g.size(tokens, 1)), [_END], 1, name="real_new_tokens")
    share = g.ReduceMean(g.Cast(real, to=ir.DataType.FLOAT), keepdims=0)
    keeps_all = g.Or(g.Greater(share, 1 - 1 / _SHARE), g.Equal(share, 0.0))
    kept = g.Or(real, keeps_all, name="computed_tokens")
    keep = g.Squeeze(g.NonZero(g.Reshape(kept, [-1])), [0], name="kept_tokens")
    return NewTokens(g.Not(keeps_all, name="new_padding_is_dropped"), kept, g.Reshape(g.Size(real), [1]), keep)
