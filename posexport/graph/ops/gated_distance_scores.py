"""Scores that depend on the head and the distance, times a gate of the row, the head and the query.

Chen et al., "WavLM" (arXiv:2110.13900), equation 8: ``scores[i, j] = b[h, i - j] g[h, i]``. The caller computes ``b``
for the distances and ``g`` for the queries of a call; indices that are not listed take the nearest listed one.
"""

import numpy as np
from onnxscript import FLOAT, INT64, script
from onnxscript import opset18 as op

from posexport.graph.ops.operator import BY_DISTANCE, CASES_BY_DISTANCE, OPSET, Array, Operator, Rows, register
from posexport.graph.ops.skew import Distances, Skew, blocks, columns, toeplitz
from posexport.graph.ops.tensor import Tensor


def oracle(by_distance: Array, gate: Array, lowest: Array, first: Array, qpos: Array, kpos: Array) -> Array:
    """One pair at a time: by_distance [H, W] from the distance lowest [1] up.

    gate [B, H, N] from the position first [1] up, qpos [T], kpos [S] -> [B, H, T, S].
    """
    out = np.zeros((*gate.shape[:2], len(qpos), len(kpos)))
    for i, t in enumerate(qpos):
        g = gate[:, :, min(max(int(t) - int(first[0]), 0), gate.shape[2] - 1)]
        for j, s in enumerate(kpos):
            out[:, :, i, j] = (
                g * by_distance[:, min(max(int(t) - int(s) - int(lowest[0]), 0), by_distance.shape[1] - 1)]
            )
    return out


def gated_distance_scores(
    by_distance: Tensor, gate: Tensor, lowest: Tensor, first: Tensor, qpos: Tensor, kpos: Tensor
) -> Tensor:
    """by_distance [H, W] for distances (query minus key) from lowest [1] up, gate [B, H, N] -> [B, H, T, S]."""
    out = gate.new_empty(*gate.shape[:2], qpos.shape[0], kpos.shape[0])
    for t, out_block in zip(blocks(qpos), blocks(out, 2), strict=True):
        by_column = by_distance[:, (columns(t, kpos) - lowest).clamp(0, by_distance.shape[1] - 1)]
        g = gate[:, :, (t - first).clamp(0, gate.shape[2] - 1)]
        out_block.copy_(toeplitz(by_column, t.shape[0], kpos.shape[0])).mul_(g[..., None])
    return out


@script(OPSET, default_opset=op)
def GatedDistanceScores(
    by_distance: FLOAT[...],
    gate: FLOAT[...],
    lowest: INT64[...],
    first: INT64[...],
    qpos: INT64[...],
    kpos: INT64[...],
) -> FLOAT[...]:
    T = op.Shape(qpos)
    S = op.Shape(kpos)
    H = op.Shape(by_distance, start=0, end=1)
    index = op.Max(op.Min(Distances(qpos, kpos) - lowest, op.Shape(by_distance, start=1, end=2) - 1), [0])
    by_column = op.Unsqueeze(op.Gather(by_distance, index, axis=1), [1])
    rows = op.Expand(by_column, op.Concat([1], H, T, T + S + 1, axis=0))
    place = op.Max(op.Min(qpos - first, op.Shape(gate, start=2, end=3) - 1), [0])
    return Skew(rows, S) * op.Unsqueeze(op.Gather(gate, place, axis=2), [3])


GATED_DISTANCE_SCORES = register(
    Operator(
        name="GatedDistanceScores",
        eager=gated_distance_scores,
        function=GatedDistanceScores,
        oracle=oracle,
        cases=CASES_BY_DISTANCE,
        draw=lambda case, rng: [
            rng.standard_normal((case.heads, case.table)),
            # the last query's is not listed, where there are two
            rng.standard_normal((case.batch, case.heads, max(1, case.queries - 1))),
            np.array([-case.table // 2]),
            np.array([5 + case.offset]),
        ],
        takes=(),
        gives="scores",
        own=("by_distance", "gate", "lowest", "first"),
        rows={"by_distance": BY_DISTANCE, "gate": Rows("queries", 2, ("first", 0))},
        scaled=False,
        lead=lambda by_distance, gate, *_: (gate.shape[0], by_distance.shape[0]),
    )
)
