"""Sizes, slots, positions and the mask of a decoder graph with a KV cache."""

from dataclasses import dataclass

import onnx_ir as ir

from posexport.base.spec import BATCH, SEQUENCE, TOTAL
from posexport.graph.builder import Builder
from posexport.graph.ops.dropped_scores import LOWEST

#: the end of an axis, for ONNX's Slice; a value below every difference of positions
_END, _LEAST = 2**63 - 1, -(2**62)


@dataclass(frozen=True)
class Counted:
    """Values of the graph with a cache; shape letters: B batch, T new tokens, S past and new tokens.

    Attributes:
        mask: the new input ``attention_mask``, [B, S].
        batch, new, past, total: B, T, S - T and S, int64 [1].
        queries, keys: slots of the new tokens [T] and of all tokens [S].
        counted_ids, counted_keys: the number of unmasked tokens before each token, [B, T] and [B, S].
        position_ids, key_positions: the same, or positions from an input.
        padding: the additive mask of padding, [B, 1, 1, S].
    """

    mask: ir.Value
    batch: ir.Value
    new: ir.Value
    past: ir.Value
    total: ir.Value
    queries: ir.Value
    keys: ir.Value
    position_ids: ir.Value
    key_positions: ir.Value
    counted_ids: ir.Value
    counted_keys: ir.Value
    padding: ir.Value

    @classmethod
    def of(cls, g: Builder, ids: ir.Value, given: ir.Value | None = None) -> "Counted":
        """Write them; the mask is no input yet. ``given``: an input of positions [B, T], which may say -1: counted."""
        mask = ir.Value(
            name="mask_of_all_tokens", shape=ir.Shape([BATCH, TOTAL]), type=ir.TensorType(ir.DataType.INT64)
        )
        batch, new = g.size(ids, 0), g.size(ids, 1)
        # also of the ids, which is where a graph refuses inputs that are too long
        total = g.Max(g.size(mask, 1), new)
        past = g.Sub(total, new)
        # a position of a padded token is one of a token that there is
        before = g.op("Clip", g.Sub(g.CumSum(mask, 1), 1), 0, shape=[BATCH, TOTAL])
        dropped = g.Where(g.Equal(mask, 0), LOWEST, 0.0)
        counted_keys = before
        position_ids = counted_ids = g.op("Slice", before, past, total, [1], shape=[BATCH, SEQUENCE])
        if given is not None:
            position_ids, before = _moved(g, mask, past, position_ids, before, given)
        return cls(
            mask=mask,
            batch=batch,
            new=new,
            past=past,
            total=total,
            queries=g.op("Range", g.scalar(past), g.scalar(total), 1, shape=[SEQUENCE]),
            keys=g.op("Range", 0, g.scalar(total), 1, shape=[TOTAL]),
            position_ids=position_ids,
            key_positions=before,
            counted_ids=counted_ids,
            counted_keys=counted_keys,
            padding=g.op("Unsqueeze", dropped, [1, 2], shape=[BATCH, 1, 1, TOTAL]),
        )


def _moved(
    g: Builder, mask: ir.Value, past: ir.Value, counted: ir.Value, before: ir.Value, given: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """Positions of the new tokens from the input ``given``, and positions of all tokens.

    The latter are shifted by the same amount as the new tokens of their row, as in
    `posexport.nn.caching.Reach.by_mask`.
    """
    positions = g.op("Where", g.Less(given, 0), counted, given, shape=[BATCH, SEQUENCE])
    kept = g.Slice(mask, past, [_END], [1])
    moved = g.Where(g.Equal(kept, 0), _LEAST, g.Sub(positions, counted))
    furthest = g.ReduceMax(moved, [1], keepdims=1)
    added = g.Where(g.Equal(furthest, _LEAST), 0, furthest)
    return positions, g.op("Add", before, added, shape=[BATCH, TOTAL])
