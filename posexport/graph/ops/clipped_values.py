"""The probabilities' sum of a learned vector for every clipped distance.

Shaw, Uszkoreit, Vaswani, "Self-Attention with Relative Position Representations" (arXiv:1803.02155), equation 3's
second term: ``out[i] += sum_j p_ij a_{clip(j - i, -k, k)}`` with a table of 2k + 1 rows, ``a_{-k}`` first. The
probabilities of all distances that share a row are summed before they meet it.
"""

import numpy as np
from onnxscript import FLOAT, INT64, script
from onnxscript import opset18 as op

from posexport.graph.ops.clipped_scores import CLIPPED_SCORES
from posexport.graph.ops.operator import OPSET, Array, Operator, register
from posexport.graph.ops.skew import blocks, columns, unskew
from posexport.graph.ops.tensor import Tensor


def oracle(probs: Array, table: Array, qpos: Array, kpos: Array) -> Array:
    """One query at a time: probs [B, H, T, S], table [2k+1, D], qpos [T], kpos [S] -> [B, H, T, D]."""
    k = len(table) // 2
    out = np.zeros((*probs.shape[:3], table.shape[1]))
    for i, t in enumerate(qpos):
        out[:, :, i] = probs[:, :, i] @ table[np.clip(kpos - t, -k, k) + k]
    return out


def clipped_values(probs: Tensor, table: Tensor, qpos: Tensor, kpos: Tensor) -> Tensor:
    """probs [B, H, T, S], table [2k+1, D], consecutive qpos [T] and kpos [S] (int64) -> [B, H, T, D]."""
    import torch

    last = table.shape[0] - 1
    out = probs.new_empty(*probs.shape[:3], table.shape[1])
    for p_block, t, out_block in zip(blocks(probs, 2), blocks(qpos), blocks(out, 2), strict=True):
        by_column = unskew(p_block)
        row = (last // 2 - columns(t, kpos)).clamp(0, last)
        if t.device.type == "cpu" and not torch.compiler.is_compiling():
            # the columns that share the first row, or the last, are summed before they meet it
            start = min(int((row == row[0]).sum()), len(row) - 1)
            end = max(len(row) - int((row == row[-1]).sum()), start)
            left = by_column[..., :start].sum(-1, keepdim=True)
            right = by_column[..., end:].sum(-1, keepdim=True)
            by_column = torch.cat([left, by_column[..., start:end], right], -1)
            row = torch.cat([row[:1], row[start:end], row[-1:]])
        out_block.copy_(by_column @ table[row])
    return out


@script(OPSET, default_opset=op)
def ClippedValues(probs: FLOAT[...], table: FLOAT[...], qpos: INT64[...], kpos: INT64[...]) -> FLOAT[...]:
    T = op.Shape(qpos)
    S = op.Shape(kpos)
    last = op.Shape(table, start=0, end=1) - 1
    first_query = op.Slice(qpos, [0], [1])
    first_key = op.Slice(kpos, [0], [1])
    # Keys k or more before every query, or k or more after every one, share a row: one product sums them. There
    # # remain at most T + 2k - 2 keys from `near` on, and one at least.
    near = op.Max(op.Min(first_query - first_key - last / 2 + 1, S - 1), [0])
    far = op.Min(op.Max(first_query + T - 1 - first_key + last / 2, near + 1), S)
    key = op.Unsqueeze(op.Range(0, op.Squeeze(S, [0]), 1), [1])
    outside = op.Concat(op.Less(key, near), op.GreaterOrEqual(key, far), axis=1)
    before_and_behind = op.MatMul(probs, op.CastLike(outside, probs))
    # the skew undone: T - 1 zeros after every row and before the first move each row by one more
    rest = op.Slice(probs, near, far, [3])
    width = T + op.Shape(rest, start=3)
    lead = op.Shape(probs, end=2)
    spaced = op.Pad(rest, op.Concat([0], T - 1, axis=0), None, [3])
    flat = op.Reshape(spaced, op.Concat(lead, T * (width - 1), axis=0), allowzero=1)
    shifted = op.Pad(flat, op.Concat(T - 1, [1], axis=0), None, [2])
    by_column = op.Reshape(shifted, op.Concat(lead, T, width, axis=0), allowzero=1)
    # Column c of the distances, greatest first (see window.py), takes row `first + c`, clipped to the table. Columns
    # before `start` all have the row of column 0, those from `end` on the row of the last column.
    first = last / 2 - first_query - T + 1 + first_key + near
    start = op.Max(op.Min(1 - first, width - 1), [1])
    end = op.Max(op.Min(last - first, width - 1), start)
    inner = op.Range(op.Squeeze(start, [0]), op.Squeeze(end, [0]), 1)
    row = op.Max(op.Min(first + op.Concat([0], inner, width - 1, axis=0), last), [0])
    left = op.ReduceSum(op.Slice(by_column, [0], start, [3]), [3])
    right = op.ReduceSum(op.Slice(by_column, end, width, [3]), [3])
    by_row = op.Concat(before_and_behind, left, op.Slice(by_column, start, end, [3]), right, axis=3)
    return op.MatMul(by_row, op.Gather(table, op.Concat([0], last, row, axis=0)))


CLIPPED_VALUES = register(
    Operator(
        name="ClippedValues",
        eager=clipped_values,
        function=ClippedValues,
        oracle=oracle,
        cases=CLIPPED_SCORES.cases,
        draw=lambda case, rng: [rng.standard_normal((2 * case.table + 1, case.head_size))],
        takes=("probs",),
        gives="values",
    )
)
