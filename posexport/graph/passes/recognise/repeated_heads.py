"""Recognises heads of keys and values that a module repeats for groups of queries: grouped-query attention (GQA)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from posexport.graph.builder import Builder
from posexport.graph.edits import take_place
from posexport.graph.ops.attention import AttentionSpec
from posexport.graph.partial import Subgraph, shape
from posexport.graph.passes.graph_pass import Context, PassResult
from posexport.graph.passes.recognise.recognition import Recognition
from posexport.graph.queries import sizes

#: operators that only move or copy elements of their first input
_MOVES = {"Reshape", "Expand", "Unsqueeze", "Squeeze", "Tile", "Transpose", "Slice", "Gather", "Identity"}
_BATCH, _LENGTHS = 2, (5, 3)


class GroupedHeads(Recognition):
    """Attention that reads each head of keys and values once.

    Before: ``k [B, G, S, D] -> Unsqueeze, Expand, Reshape -> [B, H, S, D] -> posexport::Attention``
    After:  ``k [B, G, S, D] -> posexport::Attention (grouped, kv_heads = G)``

    ``repeat_interleave``, ``expand`` and ``reshape`` (Llama's repeat_kv), an index: what only moves elements is
    followed back to values with fewer heads, and computed for whole numbers at two lengths. Each head must come as
    often as every other, its copies side by side, as groups of queries read them.
    """

    name = "grouped-heads"
    description = "keys and values with repeated heads as grouped-query attention"

    def apply(self, model: ir.Model, context: Context) -> PassResult:
        """Apply the pass; the result counts attention nodes."""
        _undo_slices(model)
        reasons: list[str | None] = []
        for node in list(model.graph):
            spec = AttentionSpec.of(node)
            if spec is not None and not spec.grouped and spec.cache == "none" and not _takes_keys(spec):
                reasons += _shared(model, node, spec)
        RemoveUnusedNodesPass()(model)
        return PassResult.of(reasons)


def _takes_keys(spec: AttentionSpec) -> bool:
    """Whether an operator reads keys, which then need a head for each of the queries."""
    return any("k" in operator.takes for operator in spec.operators.values())


def _shared(model: ir.Model, node: ir.Node, spec: AttentionSpec) -> list[str | None]:
    """None where the node became one of grouped queries; a reason where keys or values alone are repeated so."""
    inputs = spec.named_inputs(node)
    shared = [None if x is None else each_once(model, x) for x in (inputs["k"], inputs["v"])]
    if shared == [None, None]:
        return []
    k, v = shared
    if k is None or v is None or k.heads != v.heads:
        return ["its keys and values are not repeated for the same groups of queries"]
    inputs |= {name: _four_axes(value, node) for name, value in (("k", k), ("v", v))}
    grouped = replace(spec, grouped=True)
    take_place(grouped.node(inputs, like=node, kv_heads=k.heads), node)
    return [None]


@dataclass(frozen=True)
class Once:
    """A ``value`` [B, G, T, D], or [B, T, G, D] where ``tokens_first``."""

    value: ir.Value
    heads: int
    tokens_first: bool


def _undo_slices(model: ir.Model) -> None:
    """Heads that are repeated and picked again, as a KV cache that keeps each once has them, are what they were."""
    for node in list(model.graph):
        x, picked = (node.inputs[0], node.outputs[0]) if node.op_type == "Slice" else (None, None)
        shape, whole = sizes(picked), sizes(x)
        if picked is None or not shape or not whole or len(shape) != 4 or shape[1] == whole[1] or not node.graph:
            continue
        once = next((origin for origin in _once(model, picked) if origin.heads == shape[1]), None)
        if once is not None:
            ir.convenience.replace_all_uses_with(picked, _four_axes(once, node), replace_graph_outputs=True)


def each_once(model: ir.Model, x: ir.Value) -> Once | None:
    """What ``x`` [B, H, T, D] is made of by repeating heads, of the fewest; None where it repeats none."""
    heads = (sizes(x) or (0, 0))[1]
    return min(
        (origin for origin in _once(model, x) if origin.heads != heads), key=lambda origin: origin.heads, default=None
    )


def _once(model: ir.Model, x: ir.Value) -> Iterator[Once]:
    """Values that ``x`` repeats the heads of, each the same number of times, copies adjacent."""
    shape = sizes(x)
    if shape is None or len(shape) != 4 or not isinstance(shape[1], int) or x.dtype != ir.DataType.FLOAT:
        return
    batch, heads, tokens, size = shape
    for source in _before(x):
        source_sizes = sizes(source) or ()
        for tokens_first in (False, True):
            group = source_sizes[2 if tokens_first else 1] if len(source_sizes) == 4 else 0
            expected = (batch, tokens, group, size) if tokens_first else (batch, group, tokens, size)
            if source_sizes == expected and isinstance(group, int) and heads % group == 0:
                once = Once(source, group, tokens_first)
                if _repeats(model, x, once):
                    yield once


def _before(x: ir.Value) -> Iterator[ir.Value]:
    """What has all elements of ``x``, the nearest first."""
    node = x.producer()
    while node is not None and not node.domain and node.op_type in _MOVES and node.inputs[0] is not None:
        yield node.inputs[0]
        node = node.inputs[0].producer()


def _repeats(model: ir.Model, x: ir.Value, once: Once) -> bool:
    """Whether ``x`` is ``once`` with repeated heads, computed at two lengths."""
    subgraph, names = (
        Subgraph(model, [x], [once.value]),
        [size for size in sizes(once.value) or () if isinstance(size, str)],
    )
    if not subgraph.is_closed:
        return False
    for length in _LENGTHS:
        lengths = dict(zip(names, (_BATCH, length), strict=False))
        whole = shape(once.value, lengths)
        array = np.arange(np.prod(whole), dtype=np.float32).reshape(whole)
        answer = subgraph.run({once.value: array}, lengths)
        split = array.swapaxes(1, 2) if once.tokens_first else array
        heads = (sizes(x) or ())[1]
        assert isinstance(heads, int)
        if answer is None or not np.array_equal(answer[0], split.repeat(heads // once.heads, 1)):
            return False
    return True


def _four_axes(once: Once, before: ir.Node) -> ir.Value:
    """Keys or values as [B, G, T, D]."""
    return Builder.at(before).Transpose(once.value, perm=[0, 2, 1, 3]) if once.tokens_first else once.value
