"""Scores of a sliding window over the tokens of each row: padding, wherever it is, takes no place in the window.

Beltagy, Peters, Cohan, "Longformer" (arXiv:2004.05150), section 3.1, with distances in tokens, not in slots:
``scores[b, h, i, j] = 0`` where ``position[b, i] - position[b, j] < width``, else ``beyond[h]``. Without padding
between tokens, scores by distance (`posexport.graph.ops.distance_scores`) are the same for all rows and cost less.
Slots that are not listed take the position of the nearest listed one.
"""

import numpy as np
from onnxscript import FLOAT, INT64, script
from onnxscript import opset18 as op

from posexport.graph.ops.operator import CASES_BY_DISTANCE, OPSET, Array, Operator, register
from posexport.graph.ops.tensor import Tensor


def oracle(beyond: Array, positions: Array, width: Array, qpos: Array, kpos: Array) -> Array:
    """One pair at a time: beyond [H], positions [B, N] of the slots 0, 1, 2 ..., width [1] -> [B, H, T, S]."""
    out = np.zeros((len(positions), len(beyond), len(qpos), len(kpos)))
    last = positions.shape[1] - 1
    for row, of_slots in enumerate(positions):
        for i, t in enumerate(qpos):
            for j, s in enumerate(kpos):
                query, key = (of_slots[min(max(int(slot), 0), last)] for slot in (t, s))
                out[row, :, i, j] = beyond if query >= key + width[0] else 0
    return out


def sliding_window_scores(beyond: Tensor, positions: Tensor, width: Tensor, qpos: Tensor, kpos: Tensor) -> Tensor:
    """beyond [H], positions [B, N] by slot, width [1], slots qpos [T] and kpos [S] -> [B, H, T, S]."""
    of_queries_BT, of_keys_BS = (positions[:, slots.clamp(0, positions.shape[1] - 1)] for slots in (qpos, kpos))
    inside_BTS = of_queries_BT[:, :, None] - of_keys_BS[:, None] < width
    beyond_H11 = beyond[:, None, None]
    return beyond_H11.where(~inside_BTS[:, None], beyond_H11.new_zeros(()))


@script(OPSET, default_opset=op)
def SlidingWindowScores(
    beyond: FLOAT[...], positions: INT64[...], width: INT64[...], qpos: INT64[...], kpos: INT64[...]
) -> FLOAT[...]:
    last = op.Shape(positions, start=1, end=2) - 1
    of_queries = op.Unsqueeze(op.Gather(positions, op.Max(op.Min(qpos, last), [0]), axis=1), [1, 3])
    of_keys = op.Unsqueeze(op.Gather(positions, op.Max(op.Min(kpos, last), [0]), axis=1), [1, 2])
    outside = op.Unsqueeze(beyond, [1, 2])
    return op.Where(of_queries - of_keys < width, outside - outside, outside)


SLIDING_WINDOW_SCORES = register(
    Operator(
        name="SlidingWindowScores",
        eager=sliding_window_scores,
        function=SlidingWindowScores,
        oracle=oracle,
        cases=CASES_BY_DISTANCE,
        draw=lambda case, rng: [
            rng.standard_normal(case.heads),
            # about every third slot is padding, which has the position of the token before it; the last are not listed
            np.cumsum(rng.random((case.batch, 3 + max(case.keys, case.offset + case.queries))) < 0.7, axis=1),
            np.array([1 + case.table // 6]),
        ],
        takes=(),
        gives="scores",
        own=("beyond", "positions", "width"),
        scaled=False,
        lead=lambda beyond, positions, *_: (positions.shape[0], beyond.shape[0]),
    )
)
