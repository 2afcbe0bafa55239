"""Scores of queries and of keys against a learned vector for every distance (Hugging Face's ``relative_key_query``).

Huang et al., "Improve Transformer Models with Better Relative Position Embeddings" (arXiv:2009.13658), method 4, as
released in transformers up to 4.57: ``scores[i, j] += q_i . E[i - j + m - 1] + k_j . E[i - j + m - 1]`` with a table
of 2m - 1 rows. Distances outside the table take its nearest row; the length guard of the graph raises the error where
one is wanted.

The key term is the query term with the roles exchanged, by blocks of keys: a block of c keys meets the T + c rows
that T queries can reach from it. With c about T, a few queries against many keys cost 2 S T D products, not S (T + S)
D.
"""

import numpy as np
from onnxscript import FLOAT, INT64, script
from onnxscript import opset18 as op

from posexport.graph.ops.operator import OPSET, Array, Operator, register
from posexport.graph.ops.relative_key_scores import RELATIVE_KEY_SCORES
from posexport.graph.ops.skew import CutOff, Distances, FilledUp, KeysOfBlock, Skew, blocks, columns, skew
from posexport.graph.ops.tensor import Tensor


def oracle(q: Array, k: Array, table: Array, qpos: Array, kpos: Array) -> Array:
    """One query at a time: q [B, H, T, D], k [B, H, S, D], table [2m-1, D], qpos [T], kpos [S] -> [B, H, T, S]."""
    m = (len(table) + 1) // 2
    out = np.zeros((*q.shape[:3], len(kpos)))
    for i, t in enumerate(qpos):
        distance = np.clip(t - kpos, 1 - m, m - 1)
        out[:, :, i] = np.einsum("bhsd,sd->bhs", q[:, :, i, None] + k, table[distance + m - 1])
    return out


def relative_key_query_scores(q: Tensor, k: Tensor, table: Tensor, qpos: Tensor, kpos: Tensor) -> Tensor:
    """q [B, H, T, D], k [B, H, S, D], table [2m-1, D], consecutive qpos [T] and kpos [S] (int64) -> [B, H, T, S]."""
    last = table.shape[0] - 1
    out = q.new_empty(*q.shape[:3], kpos.shape[0])
    for q_block, t, rows in zip(blocks(q, 2), blocks(qpos), blocks(out, 2), strict=True):
        of_query = table[(last // 2 + columns(t, kpos)).clamp(0, last)]
        rows.copy_(skew(q_block @ of_query.mT, kpos.shape[0]))
        for k_block, s, block in zip(blocks(k, 2), blocks(kpos), blocks(rows, 3), strict=True):
            of_key = table[(last // 2 - columns(s, t)).clamp(0, last)]
            block.add_(skew(k_block @ of_key.mT, t.shape[0]).mT)
    return out


@script(OPSET, default_opset=op)
def RelativeKeyQueryScores(
    q: FLOAT[...], k: FLOAT[...], table: FLOAT[...], qpos: INT64[...], kpos: INT64[...]
) -> FLOAT[...]:
    T = op.Shape(q, start=2, end=3)
    S = op.Shape(kpos)
    last = op.Shape(table, start=0, end=1) - 1
    lead = op.Shape(q, start=0, end=2)
    first_query = op.Slice(qpos, [0], [1])
    first_key = op.Slice(kpos, [0], [1])
    query_row = op.Max(op.Min(Distances(qpos, kpos) + last / 2, last), [0])
    query_term = Skew(op.MatMul(q, op.Transpose(op.Gather(table, query_row), perm=[1, 0])), S)
    # the key term: blocks of `size` keys, the last one filled up with zeros; a window of T + size + 1 rows each, least
    # distance first, with the roles of keys and queries exchanged
    size = KeysOfBlock(T, S, [32])
    blocks = (S + size - 1) / size
    width = T + size + 1
    k_blocks = op.Reshape(FilledUp(k, blocks * size), op.Concat(lead, blocks, size, [-1], axis=0))
    starts = first_key + op.Range(0, op.Squeeze(blocks, [0]), 1) * size
    least = op.Unsqueeze(first_query - starts - size + last / 2, [1])
    key_row = op.Max(op.Min(least + op.Range(0, op.Squeeze(width, [0]), 1), last), [0])
    key_by_column = op.MatMul(k_blocks, op.Transpose(op.Gather(table, key_row), perm=[0, 2, 1]))
    by_query = op.Reshape(Skew(key_by_column, T), op.Concat(lead, blocks * size, T, axis=0), allowzero=1)
    key_term = CutOff(op.Transpose(by_query, perm=[0, 1, 3, 2]), S)
    return query_term + key_term


RELATIVE_KEY_QUERY_SCORES = register(
    Operator(
        name="RelativeKeyQueryScores",
        eager=relative_key_query_scores,
        function=RelativeKeyQueryScores,
        oracle=oracle,
        cases=RELATIVE_KEY_SCORES.cases,
        draw=lambda case, rng: [rng.standard_normal((2 * case.table - 1, case.head_size))],
        takes=("q", "k"),
        gives="scores",
    )
)
