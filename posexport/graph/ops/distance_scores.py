"""Scores that depend on the head and the distance alone: a bias computed once per distance, not once per pair.

The form of T5's, ALiBi's, KERPLE's and Sandwich's biases: ``scores[i, j] = b[h, i - j]``. The caller computes ``b`` for
the distances of a call; distances that are not listed take the nearest listed one.
"""

import numpy as np
from onnxscript import FLOAT, INT64, script
from onnxscript import opset18 as op

from posexport.graph.ops.operator import BY_DISTANCE, CASES_BY_DISTANCE, OPSET, Array, Operator, register
from posexport.graph.ops.skew import Skew, blocks, columns, toeplitz
from posexport.graph.ops.tensor import Tensor


def oracle(by_distance: Array, lowest: Array, qpos: Array, kpos: Array) -> Array:
    """One pair at a time: by_distance [H, W] from the distance lowest [1] up, qpos [T], kpos [S] -> [1, H, T, S]."""
    heads, width = by_distance.shape
    out = np.zeros((1, heads, len(qpos), len(kpos)))
    for i, t in enumerate(qpos):
        for j, s in enumerate(kpos):
            out[0, :, i, j] = by_distance[:, min(max(int(t) - int(s) - int(lowest[0]), 0), width - 1)]
    return out


def distance_scores(by_distance: Tensor, lowest: Tensor, qpos: Tensor, kpos: Tensor) -> Tensor:
    """by_distance [H, W] for distances (query minus key) from lowest [1] up -> [1, H, T, S]."""
    heads, width = by_distance.shape
    out = by_distance.new_empty(1, heads, qpos.shape[0], kpos.shape[0])
    for t, out_block in zip(blocks(qpos), blocks(out[0], 1), strict=True):
        by_column = by_distance[:, (columns(t, kpos) - lowest).clamp(0, width - 1)]
        out_block.copy_(toeplitz(by_column, t.shape[0], kpos.shape[0]))
    return out


@script(OPSET, default_opset=op)
def DistanceScores(by_distance: FLOAT[...], lowest: INT64[...], qpos: INT64[...], kpos: INT64[...]) -> FLOAT[...]:
    T = op.Shape(qpos)
    S = op.Shape(kpos)
    W = op.Shape(by_distance, start=1, end=2)
    # the columns of `Distances`: a run of by_distance, its ends repeated where the run is longer; copied as one,
    # because a Gather copies number by number
    first = op.Slice(qpos, [0], [1]) + T - op.Slice(kpos, [0], [1]) - lowest
    under = op.Max(T + S - first, [0])
    over = op.Max(first + 1 - W, [0])
    wide = op.Pad(by_distance, op.Concat([0], under, [0], over, axis=0), mode="edge")
    # the end is counted from the back: -1 would mean the last
    end = first - T - S - 1 - W - over
    by_column = op.Unsqueeze(op.Slice(wide, first + under, end, [1], [-1]), [1])
    rows = op.Expand(by_column, op.Concat(op.Shape(by_column, end=-2), T, T + S + 1, axis=0))
    return op.Unsqueeze(Skew(rows, S), [0])


DISTANCE_SCORES = register(
    Operator(
        name="DistanceScores",
        eager=distance_scores,
        function=DistanceScores,
        oracle=oracle,
        cases=CASES_BY_DISTANCE,
        draw=lambda case, rng: [rng.standard_normal((case.heads, case.table)), np.array([-case.table // 2])],
        takes=(),
        gives="scores",
        own=("by_distance", "lowest"),
        rows={"by_distance": BY_DISTANCE},
        scaled=False,
        shifts=True,
    )
)
