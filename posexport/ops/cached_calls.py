"""What attention that writes to its cache must know of a call, computed once for all layers.

ONNX Runtime's GroupQueryAttention takes several new tokens of several rows only where nothing is cached yet.
"""

from onnxscript import BOOL, FLOAT, INT32, INT64, script
from onnxscript import opset18 as op

from posexport.ops.base import OPSET, helper


@helper
@script(OPSET, default_opset=op)
def CachedCalls(mask: FLOAT[...], qpos: INT64[...], kpos: INT64[...]) -> tuple[BOOL, INT32[...], INT32]:
    rows = op.Shape(mask, start=0, end=1)
    new = op.Shape(qpos)
    keys = op.Shape(kpos)
    takes = op.Squeeze(op.Or(op.Or(op.Equal(rows, [1]), op.Equal(new, [1])), op.Equal(new, keys)), [0])
    last_keys = op.Cast(op.Expand(keys - 1, rows), to=6)
    key_total = op.Cast(op.Squeeze(keys, [0]), to=6)
    return takes, last_keys, key_total
