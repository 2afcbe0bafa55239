"""Scores of a query, with a bias, against a vector for every head and distance.

Dai et al., "Transformer-XL" (arXiv:1901.02860), section 3.3, terms b and d of the four: ``scores[i, j] += (q_i + v) .
R[i - j]``, with ``R`` and ``v`` of every head. (The others, ``(q_i + u) . k_j``, are ``q k^T`` with a content bias.)
The caller computes ``R`` for the distances of a call; distances that are not listed take the nearest listed one.
"""

import numpy as np
from onnxscript import FLOAT, INT64, script
from onnxscript import opset18 as op

from posexport.graph.ops.operator import BY_DISTANCE, CASES_BY_DISTANCE, OPSET, Array, Operator, register
from posexport.graph.ops.skew import Distances, Skew, blocks, columns, skew
from posexport.graph.ops.tensor import Tensor


def oracle(q: Array, by_distance: Array, query_bias: Array, lowest: Array, qpos: Array, kpos: Array) -> Array:
    """One pair at a time: q [B, H, T, D], by_distance [H, W, D] from the distance lowest [1] up, query_bias [H, D].

    qpos [T], kpos [S] -> [B, H, T, S].
    """
    out = np.zeros((*q.shape[:3], len(kpos)))
    for i, t in enumerate(qpos):
        for j, s in enumerate(kpos):
            vector = by_distance[:, min(max(int(t) - int(s) - int(lowest[0]), 0), by_distance.shape[1] - 1)]
            out[:, :, i, j] = ((q[:, :, i] + query_bias) * vector).sum(-1)
    return out


def head_distance_scores(
    q: Tensor, by_distance: Tensor, query_bias: Tensor, lowest: Tensor, qpos: Tensor, kpos: Tensor
) -> Tensor:
    """q [B, H, T, D], by_distance [H, W, D], query_bias [H, D], lowest [1], qpos [T], kpos [S] -> [B, H, T, S]."""
    last = by_distance.shape[1] - 1
    out = q.new_empty(*q.shape[:3], kpos.shape[0])
    for q_block, t, out_block in zip(blocks(q, 2), blocks(qpos), blocks(out, 2), strict=True):
        window = by_distance[:, (columns(t, kpos) - lowest).clamp(0, last)]
        by_column = (q_block + query_bias[:, None]) @ window.mT
        out_block.copy_(skew(by_column, kpos.shape[0]))
    return out


@script(OPSET, default_opset=op)
def HeadDistanceScores(
    q: FLOAT[...],
    by_distance: FLOAT[...],
    query_bias: FLOAT[...],
    lowest: INT64[...],
    qpos: INT64[...],
    kpos: INT64[...],
) -> FLOAT[...]:
    last = op.Shape(by_distance, start=1, end=2) - 1
    index = op.Max(op.Min(Distances(qpos, kpos) - lowest, last), [0])
    window = op.Transpose(op.Gather(by_distance, index, axis=1), perm=[0, 2, 1])
    by_column = op.MatMul(q + op.Unsqueeze(query_bias, [1]), window)
    return Skew(by_column, op.Shape(kpos))


HEAD_DISTANCE_SCORES = register(
    Operator(
        name="HeadDistanceScores",
        eager=head_distance_scores,
        function=HeadDistanceScores,
        oracle=oracle,
        cases=CASES_BY_DISTANCE,
        draw=lambda case, rng: [
            rng.standard_normal((case.heads, case.table, case.head_size)),
            rng.standard_normal((case.heads, case.head_size)),
            np.array([-case.table // 2]),
        ],
        takes=("q",),
        gives="scores",
        own=("by_distance", "query_bias", "lowest"),
        rows={"by_distance": BY_DISTANCE},
        scaled_along=("query_bias",),
    )
)
