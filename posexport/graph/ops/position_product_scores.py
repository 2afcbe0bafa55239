"""Scores by a product of a vector of the query's position and one of the key's, plus a bias by head and distance.

``scores[i, j] = u[i] . w[j] + b[h, i - j]``: the form of TUPE's untied positional correlation, and of BLOOM's bias by
key position. The caller computes ``u`` and ``w`` for the tokens of a call, per row of the batch where rows number their
tokens differently; positions and distances that are not listed take the nearest listed
one.
"""

import numpy as np
from onnxscript import FLOAT, INT64, script
from onnxscript import opset18 as op

from posexport.graph.ops.operator import BY_DISTANCE, CASES_BY_DISTANCE, OPSET, Array, Operator, Rows, register
from posexport.graph.ops.skew import Distances, Skew, blocks, columns, toeplitz
from posexport.graph.ops.tensor import Tensor


def oracle(
    by_query: Array, by_key: Array, by_distance: Array, lowest: Array, first: Array, qpos: Array, kpos: Array
) -> Array:
    """One pair at a time: by_query [G, H, N, E] and by_key [G, H, M, E] from the positions first [2] up.

    by_distance [H, W] from the distance lowest [1] up, qpos [T], kpos [S] -> [G, H, T, S]; G is the batch or 1.
    """

    def nearest(listed: int, start: int, code: int) -> int:
        return min(max(int(code) - int(start), 0), listed - 1)

    out = np.zeros((*by_query.shape[:2], len(qpos), len(kpos)))
    for i, t in enumerate(qpos):
        for j, s in enumerate(kpos):
            u = by_query[:, :, nearest(by_query.shape[2], first[0], t)]
            w = by_key[:, :, nearest(by_key.shape[2], first[1], s)]
            bias = by_distance[:, nearest(by_distance.shape[1], lowest[0], t - s)]
            out[:, :, i, j] = (u * w).sum(-1) + bias
    return out


def position_product_scores(
    by_query: Tensor, by_key: Tensor, by_distance: Tensor, lowest: Tensor, first: Tensor, qpos: Tensor, kpos: Tensor
) -> Tensor:
    """by_query [G, H, N, E], by_key [G, H, M, E], by_distance [H, W] -> [G, H, T, S]."""
    rows, heads, listed = by_query.shape[:3]
    w = by_key[:, :, (kpos - first[1]).clamp(0, by_key.shape[2] - 1)]
    out = by_query.new_empty(rows, heads, qpos.shape[0], kpos.shape[0])
    for t, out_block in zip(blocks(qpos), blocks(out, 2), strict=True):
        u = by_query[:, :, (t - first[0]).clamp(0, listed - 1)]
        by_column = by_distance[:, (columns(t, kpos) - lowest).clamp(0, by_distance.shape[1] - 1)]
        out_block.copy_(u @ w.mT + toeplitz(by_column, t.shape[0], kpos.shape[0]))
    return out


@script(OPSET, default_opset=op)
def PositionProductScores(
    by_query: FLOAT[...],
    by_key: FLOAT[...],
    by_distance: FLOAT[...],
    lowest: INT64[...],
    first: INT64[...],
    qpos: INT64[...],
    kpos: INT64[...],
) -> FLOAT[...]:
    T = op.Shape(qpos)
    S = op.Shape(kpos)
    H = op.Shape(by_distance, start=0, end=1)
    # the vectors of these queries and keys, and their products
    query_row = op.Max(op.Min(qpos - op.Slice(first, [0], [1]), op.Shape(by_query, start=2, end=3) - 1), [0])
    key_row = op.Max(op.Min(kpos - op.Slice(first, [1], [2]), op.Shape(by_key, start=2, end=3) - 1), [0])
    u = op.Gather(by_query, query_row, axis=2)
    w = op.Gather(by_key, key_row, axis=2)
    product = op.MatMul(u, op.Transpose(w, perm=[0, 1, 3, 2]))
    index = op.Max(op.Min(Distances(qpos, kpos) - lowest, op.Shape(by_distance, start=1, end=2) - 1), [0])
    by_column = op.Unsqueeze(op.Gather(by_distance, index, axis=1), [1])
    rows = op.Expand(by_column, op.Concat([1], H, T, T + S + 1, axis=0))
    return product + Skew(rows, S)


POSITION_PRODUCT_SCORES = register(
    Operator(
        name="PositionProductScores",
        eager=position_product_scores,
        function=PositionProductScores,
        oracle=oracle,
        cases=CASES_BY_DISTANCE,
        # the last query's position is not listed, one before the first key is: both ends are clipped or skipped
        draw=lambda case, rng: [
            rng.standard_normal((case.batch, case.heads, max(1, case.queries - 1), case.head_size)),
            rng.standard_normal((case.batch, case.heads, case.keys + 1, case.head_size)),
            rng.standard_normal((case.heads, case.table)),
            np.array([-case.table // 2]),
            np.array([5 + case.offset, 4]),
        ],
        takes=(),
        gives="scores",
        own=("by_query", "by_key", "by_distance", "lowest", "first"),
        scaled=False,
        inner=("by_query",),
        rows={
            "by_query": Rows("queries", 2, ("first", 0)),
            "by_key": Rows("keys", 2, ("first", 1)),
            "by_distance": BY_DISTANCE,
        },
        lead=lambda by_query, *_: (by_query.shape[0], by_query.shape[1]),
    )
)
