"""Masks over pairs of tokens: the attention that shares one, and the sum of the terms that stay in one."""

from collections.abc import Callable, Iterable

import onnx_ir as ir

from posexport.graph.builder import Builder
from posexport.graph.ops.attention import AttentionSpec
from posexport.graph.queries import sizes

#: attention nodes with their records
Nodes = list[tuple[ir.Node, AttentionSpec]]


def by_mask(model: ir.Model, is_open: Callable[[ir.Node, AttentionSpec], bool]) -> dict[ir.Value, Nodes]:
    """The attention nodes with a mask over pairs by that mask, of those that a pass may change."""
    nodes: dict[ir.Value, Nodes] = {}
    for node in model.graph:
        spec = AttentionSpec.of(node)
        if spec is not None and spec.mask == "pairs" and is_open(node, spec):
            mask = spec.named_inputs(node)["mask"]
            if mask is not None:
                nodes.setdefault(mask, []).append((node, spec))
    return nodes


def is_of_all_heads(value: ir.Value) -> bool:
    """Whether it is a mask of all heads: with a batch where it has one row for all queries."""
    shape = sizes(value)
    if shape is None or len(shape) > 4:
        return False
    shape = (1,) * (4 - len(shape)) + shape
    return shape[1] == 1 and shape[3] != 1 and (shape[2] != 1 or shape[0] != 1)


def summed(g: Builder, values: Iterable[ir.Value]) -> ir.Value | None:
    """The sum of masks, [B or 1, H or 1, T or 1, S]; None of none."""
    total: ir.Value | None = None
    for value in values:
        missing = list(range(4 - len(sizes(value) or ())))
        whole = g.Unsqueeze(value, missing) if missing else value
        if total is not None:
            both = [b if a == 1 else a for a, b in zip(sizes(total) or (), sizes(whole) or (), strict=True)]
            whole = g.op("Add", total, whole, shape=both)
        total = whole
    return total
