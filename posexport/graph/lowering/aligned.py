"""Attention with a bias padded to rows of a multiple of some number of elements, which a device computes fused.

ONNX Runtime's memory-efficient kernels for CUDA read a bias in aligned pieces: they take no other number of queries or
keys (`posexport.base.targets.providers.Provider.bias_multiples`), and all scores are held instead. Missing keys are
filled in as zeros that the bias drops, missing queries as zeros with their context cut off. How many are missing
follows from sizes, so nothing waits for it. Where none is, keys and values are copied for nothing: a branch would avoid
that, and a CUDA graph has none.
"""

from collections.abc import Callable

import onnx_ir as ir

from posexport.graph.builder import Builder
from posexport.graph.lowering.attention import Attention

#: from the name of keys or values, how many there are and how many are missing (int64 [1]) to all of them
Fill = Callable[[str, ir.Value, ir.Value], ir.Value]


def aligned(attention: Attention, *, queries: int, keys: int, fill: Fill | None = None) -> tuple[Attention, ir.Value]:
    """``attention`` over queries and keys filled up to these multiples, and its bias [B or 1, H or 1, T', S'].

    For what adds something to its scores. ``queries`` may be 1: they stay as many as they are. ``fill``: where keys and
    values are not filled up with zeros.
    """
    g, x, packed = attention.g, attention.x, attention.spec.packed

    def zeros(name: str, _: ir.Value, missing: ir.Value) -> ir.Value:
        return g.Pad(x[name], _behind(g, missing, packed=packed), name=f"{name}_filled")

    alone = attention.adds_mask_alone
    bias = x["mask"] if alone else attention.bias()
    assert bias is not None
    # by the sizes of the bias: layers with the same bias share the padding
    old, new = g.size(bias, 3), attention.queries() if alone else g.size(bias, 2)
    no_keys, no_queries = _missing(g, old, keys), _missing(g, new, queries) if queries > 1 else None
    filled = {name: (fill or zeros)(name, old, no_keys) for name in "kv"}
    if no_queries is not None:
        filled["q"] = zeros("q", new, no_queries)
    if alone:
        mask = g.Pad(bias, g.shape([0] * 7, no_keys), attention.lowest(), name="mask_of_all_keys")
        whole = new if no_queries is None else g.Add(new, no_queries)
        return attention.over(**filled), g.Expand(mask, g.shape(whole, [1]), name="mask_of_queries")
    pads = g.shape([0] * 6, [0] if no_queries is None else no_queries, no_keys)
    return attention.over(**filled), g.Pad(bias, pads, attention.lowest(), name="aligned_bias")


def _behind(g: Builder, missing: ir.Value, *, packed: bool) -> ir.Value:
    """The pads that append tokens to [B, T, H D] or [B, H, T, D].

    All axes have a value: ONNX Runtime 1.31 reads pads of some axes as pads of all axes where it moves a Transpose past
    the Pad.
    """
    return g.shape([0] * (4 if packed else 6), missing, [0])


def _missing(g: Builder, size: ir.Value, multiple: int) -> ir.Value:
    """How many are missing up to a multiple, int64 [1]."""
    return g.Sub(g.Mul(g.Div(g.Add(size, [multiple - 1]), [multiple]), [multiple]), size)
