"""Scores of a query against a learned vector for every clipped distance.

Shaw, Uszkoreit, Vaswani, "Self-Attention with Relative Position Representations" (arXiv:1803.02155), equation 4's
second term: ``scores[i, j] += q_i . a_{clip(j - i, -k, k)}`` with a table of 2k + 1 rows, ``a_{-k}`` first. The sign
is the opposite of `relative_key_scores`. Few rows against many distances: each query meets every row once, and the
products of the two outermost rows are repeated for all distances beyond them.
"""

import numpy as np
from onnxscript import FLOAT, INT64, script
from onnxscript import opset18 as op

from posexport.graph.ops.operator import OPSET, Array, Case, Operator, register
from posexport.graph.ops.skew import Skew, blocks, columns, skew
from posexport.graph.ops.tensor import Tensor


def oracle(q: Array, table: Array, qpos: Array, kpos: Array) -> Array:
    """One query at a time: q [B, H, T, D], table [2k+1, D], qpos [T], kpos [S] -> [B, H, T, S]."""
    k = (len(table) - 1) // 2
    out = np.zeros((*q.shape[:3], len(kpos)))
    for i, t in enumerate(qpos):
        vectors = np.stack([table[k + max(-k, min(k, int(s) - int(t)))] for s in kpos])
        out[:, :, i] = np.einsum("bhd,sd->bhs", q[:, :, i], vectors)
    return out


def clipped_scores(q: Tensor, table: Tensor, qpos: Tensor, kpos: Tensor) -> Tensor:
    """q [B, H, T, D], table [2k+1, D], consecutive qpos [T] and kpos [S] (int64) -> [B, H, T, S]."""
    last = table.shape[0] - 1
    out = q.new_empty(*q.shape[:3], kpos.shape[0])
    for q_block, t, out_block in zip(blocks(q, 2), blocks(qpos), blocks(out, 2), strict=True):
        row = (last // 2 - columns(t, kpos)).clamp(0, last)
        out_block.copy_(skew((q_block @ table.mT).index_select(-1, row), kpos.shape[0]))
    return out


@script(OPSET, default_opset=op)
def ClippedScores(q: FLOAT[...], table: FLOAT[...], qpos: INT64[...], kpos: INT64[...]) -> FLOAT[...]:
    T = op.Shape(q, start=2, end=3)
    S = op.Shape(kpos)
    width = T + S + 1
    last = op.Shape(table, start=0, end=1) - 1
    # Column c of `Distances` takes row `first + c`, clipped to the table (its rows are in reverse order).
    # Columns before `start` all have the row of column 0, those from `end` on the row of the last column.
    first = last / 2 - op.Slice(qpos, [0], [1]) - T + op.Slice(kpos, [0], [1])
    start = op.Max(op.Min(1 - first, width - 1), [1])
    end = op.Max(op.Min(last - first, width - 1), start)
    inner = op.Range(op.Squeeze(start, [0]), op.Squeeze(end, [0]), 1)
    row = op.Max(op.Min(first + op.Concat([0], inner, width - 1, axis=0), last), [0])
    by_row = op.MatMul(q, op.Transpose(op.Gather(table, row), perm=[1, 0]))
    by_column = op.Pad(by_row, op.Concat(start - 1, width - 1 - end, axis=0), None, [3], mode="edge")
    return Skew(by_column, S)


CLIPPED_SCORES = register(
    Operator(
        name="ClippedScores",
        eager=clipped_scores,
        function=ClippedScores,
        oracle=oracle,
        cases=[
            Case(batch=2, heads=5, queries=1, keys=1, head_size=3, table=0),
            Case(batch=2, heads=5, queries=17, keys=19, head_size=4, table=3),
            Case(batch=2, heads=3, queries=7, keys=19, head_size=4, table=5, offset=12),
            Case(batch=1, heads=2, queries=1, keys=23, head_size=6, table=7, offset=22),
            Case(batch=3, heads=2, queries=29, keys=1, head_size=6, table=11, offset=-13),
            Case(batch=3, heads=2, queries=29, keys=5, head_size=6, table=64),
            Case(batch=1, heads=2, queries=4, keys=9, head_size=6, table=16, offset=2_000_000_000),
            Case(batch=1, heads=2, queries=4, keys=9, head_size=6, table=16, offset=-2_000_000_000),
            Case(batch=1, heads=1, queries=301, keys=277, head_size=4, table=16),
        ],
        draw=lambda case, rng: [rng.standard_normal((2 * case.table + 1, case.head_size))],
        takes=("q",),
        gives="scores",
    )
)
