"""Key compaction: an order of the keys with unmasked ones first, and their count per row, for all layers of a call.

Attention does not depend on the order of its keys. With unmasked keys first, one count per row replaces the mask
(``nonpad_kv_seqlen``), and fused attention on a device needs no bias, whichever keys are masked.
"""

from onnxscript import FLOAT, INT64, script
from onnxscript import opset18 as op

from posexport.ops.operator import OPSET, helper

#: the outputs, in order
KEPT = ("key_order", "key_counts")


@helper
@script(OPSET, default_opset=op)
def KeptKeys(mask: FLOAT[...]) -> tuple[INT64[...], INT64[...]]:
    """From a mask [B, 1, 1, S], 0 for unmasked keys: indices into the keys of all rows [B, S], and counts [B]."""
    drops = op.Cast(mask, to=9)
    kept_so_far = op.CumSum(op.Cast(op.Not(drops), to=7), 3)
    counts = op.Slice(kept_so_far, [-1], [9223372036854775807], [3])
    B = op.Shape(mask, start=0, end=1)
    S = op.Shape(mask, start=3, end=4)
    key = op.Range(0, op.Squeeze(S, [0]), 1)
    # a masked key comes after all unmasked ones, in the order of the masked
    place = op.Where(drops, key - kept_so_far + counts, kept_so_far - 1)
    keys = op.Expand(key, op.Shape(mask))
    order = op.Reshape(op.ScatterElements(keys, place, keys, axis=3), op.Concat(B, S, axis=0))
    first = op.Range(0, op.Squeeze(B * S, [0]), op.Squeeze(S, [0]))
    return order + op.Unsqueeze(first, [1]), op.Reshape(counts, [-1])
