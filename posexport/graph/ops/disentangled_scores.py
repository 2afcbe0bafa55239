"""Scores of queries and of keys, each against a separate vector for every head and distance.

He et al., "DeBERTa" (arXiv:2006.03654), equation 4's second and third term as the released code has them:
``scores[i, j] += q_i . K[i - j] + k_j . Q[i - j]``, with ``K`` and ``Q`` of every head. The caller computes both for
the distances of a call; distances that are not listed take the nearest listed one.

The key term is computed by blocks of keys, as in `relative_key_query_scores`: a block of c keys meets the T + c
distances that T queries can have from it. With c about T, a few queries against many keys cost 2 S T D products, not S
(T + S) D.
"""

import numpy as np
from onnxscript import FLOAT, INT64, script
from onnxscript import opset18 as op

from posexport.graph.ops.operator import BY_DISTANCE, CASES_BY_DISTANCE, OPSET, Array, Operator, register
from posexport.graph.ops.skew import CutOff, Distances, FilledUp, KeysOfBlock, Skew, blocks, columns, skew
from posexport.graph.ops.tensor import Tensor


def oracle(
    q: Array, k: Array, by_distance: Array, by_distance_of_key: Array, lowest: Array, qpos: Array, kpos: Array
) -> Array:
    """One pair at a time: q [B, H, T, D], k [B, H, S, D], both by distance [H, W, D] from the distance lowest [1] up.

    qpos [T], kpos [S] -> [B, H, T, S].
    """
    out = np.zeros((*q.shape[:3], len(kpos)))
    for i, t in enumerate(qpos):
        for j, s in enumerate(kpos):
            row = min(max(int(t) - int(s) - int(lowest[0]), 0), by_distance.shape[1] - 1)
            out[:, :, i, j] = (q[:, :, i] * by_distance[:, row] + k[:, :, j] * by_distance_of_key[:, row]).sum(-1)
    return out


def disentangled_scores(
    q: Tensor, k: Tensor, by_distance: Tensor, by_distance_of_key: Tensor, lowest: Tensor, qpos: Tensor, kpos: Tensor
) -> Tensor:
    """q [B, H, T, D], k [B, H, S, D], by_distance and by_distance_of_key [H, W, D], lowest [1] -> [B, H, T, S]."""
    last = by_distance.shape[1] - 1
    out = q.new_empty(*q.shape[:3], kpos.shape[0])
    for q_block, t, rows in zip(blocks(q, 2), blocks(qpos), blocks(out, 2), strict=True):
        of_query = by_distance[:, (columns(t, kpos) - lowest).clamp(0, last)]
        rows.copy_(skew(q_block @ of_query.mT, kpos.shape[0]))
        for k_block, s, block in zip(blocks(k, 2), blocks(kpos), blocks(rows, 3), strict=True):
            of_key = by_distance_of_key[:, (-columns(s, t) - lowest).clamp(0, last)]
            block.add_(skew(k_block @ of_key.mT, t.shape[0]).mT)
    return out


@script(OPSET, default_opset=op)
def DisentangledScores(
    q: FLOAT[...],
    k: FLOAT[...],
    by_distance: FLOAT[...],
    by_distance_of_key: FLOAT[...],
    lowest: INT64[...],
    qpos: INT64[...],
    kpos: INT64[...],
) -> FLOAT[...]:
    T = op.Shape(q, start=2, end=3)
    S = op.Shape(kpos)
    last = op.Shape(by_distance, start=1, end=2) - 1
    lead = op.Shape(q, start=0, end=2)
    first_query = op.Slice(qpos, [0], [1])
    first_key = op.Slice(kpos, [0], [1])
    query_index = op.Max(op.Min(Distances(qpos, kpos) - lowest, last), [0])
    query_window = op.Transpose(op.Gather(by_distance, query_index, axis=1), perm=[0, 2, 1])
    query_term = Skew(op.MatMul(q, query_window), S)
    # the key term: blocks of `size` keys, the last one filled up with zeros; a window of T + size + 1 distances each,
    # least first, with the roles of keys and queries exchanged
    size = KeysOfBlock(T, S, [64])
    blocks = (S + size - 1) / size
    width = T + size + 1
    k_blocks = op.Reshape(FilledUp(k, blocks * size), op.Concat(lead, blocks, size, [-1], axis=0))
    starts = first_key + op.Range(0, op.Squeeze(blocks, [0]), 1) * size
    least = op.Unsqueeze(first_query - starts - size - lowest, [1])
    key_index = op.Max(op.Min(least + op.Range(0, op.Squeeze(width, [0]), 1), last), [0])
    key_window = op.Transpose(op.Gather(by_distance_of_key, key_index, axis=1), perm=[0, 1, 3, 2])
    key_by_column = op.MatMul(k_blocks, key_window)
    by_query = op.Reshape(Skew(key_by_column, T), op.Concat(lead, blocks * size, T, axis=0), allowzero=1)
    key_term = CutOff(op.Transpose(by_query, perm=[0, 1, 3, 2]), S)
    return query_term + key_term


DISENTANGLED_SCORES = register(
    Operator(
        name="DisentangledScores",
        eager=disentangled_scores,
        function=DisentangledScores,
        oracle=oracle,
        cases=CASES_BY_DISTANCE,
        draw=lambda case, rng: [
            *rng.standard_normal((2, case.heads, case.table, case.head_size)),
            np.array([-case.table // 2]),
        ],
        takes=("q", "k"),
        gives="scores",
        own=("by_distance", "by_distance_of_key", "lowest"),
        rows={"by_distance": BY_DISTANCE, "by_distance_of_key": BY_DISTANCE},
    )
)
