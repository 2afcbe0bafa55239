"""Scores of a query against a learned vector for every distance (``relative_key`` of Hugging Face's BERT).

Huang et al., "Improve Transformer Models with Better Relative Position Embeddings" (arXiv:2009.13658), method 4's first
term, as released in transformers up to 4.57: ``scores[i, j] += q_i . E[i - j + m - 1]`` with a table of 2m - 1 rows.
Distances outside the table take its nearest row; the length guard of the graph raises the error where one is wanted.
"""

import numpy as np
from onnxscript import FLOAT, INT64, script
from onnxscript import opset18 as op

from posexport.graph.ops.operator import OPSET, Array, Case, Operator, register
from posexport.graph.ops.skew import Distances, Skew, blocks, columns, skew
from posexport.graph.ops.tensor import Tensor


def oracle(q: Array, table: Array, qpos: Array, kpos: Array) -> Array:
    """One query at a time: q [B, H, T, D], table [2m-1, D], qpos [T], kpos [S] -> [B, H, T, S]."""
    m = (len(table) + 1) // 2
    out = np.zeros((*q.shape[:3], len(kpos)))
    for i, t in enumerate(qpos):
        distance = np.clip(t - kpos, 1 - m, m - 1)
        out[:, :, i] = np.einsum("bhd,sd->bhs", q[:, :, i], table[distance + m - 1])
    return out


def relative_key_scores(q: Tensor, table: Tensor, qpos: Tensor, kpos: Tensor) -> Tensor:
    """q [B, H, T, D], table [2m-1, D], consecutive qpos [T] and kpos [S] (int64) -> [B, H, T, S]."""
    last = table.shape[0] - 1
    out = q.new_empty(*q.shape[:3], kpos.shape[0])
    for q_block, t, out_block in zip(blocks(q, 2), blocks(qpos), blocks(out, 2), strict=True):
        window = table[(last // 2 + columns(t, kpos)).clamp(0, last)]
        out_block.copy_(skew(q_block @ window.mT, kpos.shape[0]))
    return out


@script(OPSET, default_opset=op)
def RelativeKeyScores(q: FLOAT[...], table: FLOAT[...], qpos: INT64[...], kpos: INT64[...]) -> FLOAT[...]:
    last = op.Shape(table, start=0, end=1) - 1
    row = op.Max(op.Min(Distances(qpos, kpos) + last / 2, last), [0])
    by_column = op.MatMul(q, op.Transpose(op.Gather(table, row), perm=[1, 0]))
    return Skew(by_column, op.Shape(kpos))


RELATIVE_KEY_SCORES = register(
    Operator(
        name="RelativeKeyScores",
        eager=relative_key_scores,
        function=RelativeKeyScores,
        oracle=oracle,
        cases=[
            Case(batch=1, heads=5, queries=1, keys=1, head_size=3, table=1),
            Case(batch=2, heads=5, queries=17, keys=17, head_size=4, table=17),
            Case(batch=2, heads=3, queries=7, keys=19, head_size=4, table=11, offset=12),
            Case(batch=1, heads=2, queries=1, keys=23, head_size=6, table=64, offset=22),
            Case(batch=3, heads=2, queries=29, keys=1, head_size=6, table=40, offset=-3),
            Case(batch=3, heads=2, queries=29, keys=5, head_size=6, table=40, offset=-3),
            Case(batch=1, heads=2, queries=4, keys=9, head_size=6, table=16, offset=2_000_000_000),
            Case(batch=1, heads=1, queries=301, keys=277, head_size=4, table=90),
        ],
        draw=lambda case, rng: [rng.standard_normal((2 * case.table - 1, case.head_size))],
        takes=("q",),
        gives="scores",
    )
)
