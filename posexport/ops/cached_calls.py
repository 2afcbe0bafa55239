"""What attention that writes to its cache must know of a call, computed once for all layers.

ONNX Runtime's GroupQueryAttention takes several new tokens of several rows only where nothing is cached yet.

On a device only attention without a bias is fused. A mask, [B, 1, 1, S] with 0 for kept keys, needs none where no
dropped key precedes a kept one: rows without padding, prompts that are padded on the right. Causal order
alone then keeps every query that counts from them (`OrderSuffices`).
"""

from onnxscript import BOOL, FLOAT, INT32, INT64, script
from onnxscript import opset18 as op

from posexport.ops.operator import OPSET, helper

#: the outputs, in order
OF_CALL = ("takes", "last_keys", "key_total", "step", "write_at", "unused")


@helper
@script(OPSET, default_opset=op)
def CachedCalls(
    mask: FLOAT[...], qpos: INT64[...], kpos: INT64[...], past_k: FLOAT[...]
) -> tuple[BOOL, INT32[...], INT32, BOOL, INT64[...], INT64[...]]:
    rows = op.Shape(mask, start=0, end=1)
    new = op.Shape(qpos)
    keys = op.Shape(kpos)
    one = op.Equal(new, [1])
    takes = op.Squeeze(op.Or(op.Or(op.Equal(rows, [1]), one), op.Equal(new, keys)), [0])
    last_keys = op.Cast(op.Expand(keys - 1, rows), to=6)
    key_total = op.Cast(op.Squeeze(keys, [0]), to=6)
    capacity = op.Shape(past_k, start=2, end=3)
    # the whole capacity costs as much as the used slots do in the operator where these are two thirds
    step = op.Squeeze(op.And(one, op.LessOrEqual(capacity * 2, keys * 3)), [0])
    write_at = op.Expand(op.Slice(qpos, [0], [1]), rows)
    return takes, last_keys, key_total, step, write_at, capacity - keys


@helper
@script(OPSET, default_opset=op)
def OrderSuffices(mask: FLOAT[...], takes: BOOL) -> BOOL:
    before = op.Concat(op.Slice(mask, [0], [1], [3]), op.Slice(mask, [0], [-1], [3]), axis=3)
    holes = op.Cast(op.Less(before, mask), to=1)
    # what the host knows as a Range of one element, which a device writes: nothing is copied to it
    known = op.Cast(takes, to=7)
    taken = op.Cast(op.Squeeze(op.Range(known, known + 1, 1), [0]), to=9)
    return op.And(taken, op.Equal(op.ReduceMax(holes, keepdims=0), 0.0))
