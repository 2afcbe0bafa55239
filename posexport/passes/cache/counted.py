"""New tokens, slots and positions of a decoder with a KV cache, and the mask over all tokens."""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from posexport.graph.builder import Builder
from posexport.spec import BATCH, SEQUENCE, TOTAL

#: score of a masked key, as `posexport.nn.attention.dropped_score` has it
LOWEST = float(np.finfo(np.float32).min) / 2


@dataclass(frozen=True)
class Counted:
    """Values of the graph with a cache; shape letters: B batch, T new tokens, S past and new tokens.

    Attributes:
        mask: the new input, [B, S].
        batch, new, past, total: B, T, S - T and S, int64 [1].
        queries, keys: slots of the new tokens [T] and of all [S].
        position_ids, key_positions: the number of tokens before each that the mask keeps, [B, T] and [B, S].
        padding: the term added to the scores of each key, [B, 1, 1, S].
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
    padding: ir.Value

    @classmethod
    def of(cls, g: Builder, ids: ir.Value) -> "Counted":
        """Write them; the mask is no input yet."""
        mask = ir.Value(
            name="mask_of_all_tokens", shape=ir.Shape([BATCH, TOTAL]), type=ir.TensorType(ir.DataType.INT64)
        )
        batch, new, total = g.size(ids, 0), g.size(ids, 1), g.size(mask, 1)
        past = g.Sub(total, new)
        # a position of a padded token is one of a token that there is
        before = g.op("Clip", g.Sub(g.CumSum(mask, 1), 1), 0, shape=[BATCH, TOTAL])
        dropped = g.Where(g.Equal(mask, 0), LOWEST, 0.0)
        return cls(
            mask=mask,
            batch=batch,
            new=new,
            past=past,
            total=total,
            queries=g.op("Range", g.scalar(past), g.scalar(total), 1, shape=[SEQUENCE]),
            keys=g.op("Range", 0, g.scalar(total), 1, shape=[TOTAL]),
            position_ids=g.op("Slice", before, past, total, [1], shape=[BATCH, SEQUENCE]),
            key_positions=before,
            padding=g.op("Unsqueeze", dropped, [1, 2], shape=[BATCH, 1, 1, TOTAL]),
        )
