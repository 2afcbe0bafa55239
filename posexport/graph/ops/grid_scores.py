"""Scores that depend on the head and on the offset in two (or more) dimensions: a bias computed once per offset.

The form of BEiT's and Swin's biases: ``scores[i, j] = b[h, cq[i] - ck[j]]``. Every token has a whole number, its code,
chosen so that the difference of a query's and a key's says which row of ``b`` they take. Patches numbered
``row (2 columns - 1) + column`` have differences that are different for every offset, from ``-reach`` to ``reach`` with
``reach = (rows - 1) (2 columns - 1) + columns - 1``. A token without a place (a class token) gets a code far off,
as a query another than as a key, so that its differences are beyond these: differences that ``b`` does not list are
clipped to its range, which makes its first and last entry rows for them (`posexport.encodings.beit`).

The caller lists the codes of a call's tokens, from the first slot on; slots that are not listed get the
nearest code (a lowering may ask for queries past the last).
"""

import numpy as np
from onnxscript import FLOAT, INT64, script
from onnxscript import opset18 as op

from posexport.graph.ops.operator import CASES_BY_DISTANCE, OPSET, Array, Operator, Rows, register
from posexport.graph.ops.skew import blocks
from posexport.graph.ops.tensor import Tensor


def oracle(
    by_distance: Array, lowest: Array, query_code: Array, key_code: Array, first: Array, qpos: Array, kpos: Array
) -> Array:
    """One pair at a time: by_distance [H, W] from the difference lowest [1] up; codes from the slots first [2] up.

    query_code [N], key_code [M], first [2] (of queries, of keys), qpos [T], kpos [S] -> [1, H, T, S].
    """

    def nearest(listed: int, start: int, code: int) -> int:
        return min(max(int(code) - int(start), 0), listed - 1)

    out = np.zeros((1, len(by_distance), len(qpos), len(kpos)))
    for i, t in enumerate(qpos):
        for j, s in enumerate(kpos):
            here = query_code[nearest(len(query_code), first[0], t)]
            there = key_code[nearest(len(key_code), first[1], s)]
            out[0, :, i, j] = by_distance[:, nearest(by_distance.shape[1], lowest[0], here - there)]
    return out


def grid_scores(
    by_distance: Tensor,
    lowest: Tensor,
    query_code: Tensor,
    key_code: Tensor,
    first: Tensor,
    qpos: Tensor,
    kpos: Tensor,
) -> Tensor:
    """by_distance [H, W] for differences of codes (query minus key) from lowest [1] up -> [1, H, T, S]."""
    heads, width = by_distance.shape
    there = key_code[(kpos - first[1]).clamp(0, key_code.shape[0] - 1)] + lowest
    out = by_distance.new_empty(1, heads, qpos.shape[0], kpos.shape[0])
    for t, out_block in zip(blocks(qpos), blocks(out[0], 1), strict=True):
        here = query_code[(t - first[0]).clamp(0, query_code.shape[0] - 1)]
        out_block.copy_(by_distance[:, (here[:, None] - there).clamp(0, width - 1)])
    return out


@script(OPSET, default_opset=op)
def GridScores(
    by_distance: FLOAT[...],
    lowest: INT64[...],
    query_code: INT64[...],
    key_code: INT64[...],
    first: INT64[...],
    qpos: INT64[...],
    kpos: INT64[...],
) -> FLOAT[...]:
    last = op.Shape(by_distance, start=1, end=2) - 1
    query_slot = op.Max(op.Min(qpos - op.Slice(first, [0], [1]), op.Shape(query_code) - 1), [0])
    key_slot = op.Max(op.Min(kpos - op.Slice(first, [1], [2]), op.Shape(key_code) - 1), [0])
    here = op.Unsqueeze(op.Gather(query_code, query_slot), [1])
    there = op.Unsqueeze(op.Gather(key_code, key_slot) + lowest, [0])
    index = op.Max(op.Min(here - there, last), [0])
    return op.Unsqueeze(op.Gather(by_distance, index, axis=1), [0])


GRID_SCORES = register(
    Operator(
        name="GridScores",
        eager=grid_scores,
        function=GridScores,
        oracle=oracle,
        cases=CASES_BY_DISTANCE,
        # one query less than there are, one key before the first: neither is listed in vain; some differences of codes
        # are past either end of the table
        draw=lambda case, rng: [
            rng.standard_normal((case.heads, case.table)),
            np.array([-case.table // 3]),
            rng.integers(-case.table, case.table, max(1, case.queries - 1)),
            rng.integers(-case.table // 2, case.table, case.keys + 1),
            np.array([5 + case.offset, 4]),
        ],
        takes=(),
        gives="scores",
        own=("by_distance", "lowest", "query_code", "key_code", "first"),
        rows={"query_code": Rows("queries", 0, ("first", 0)), "key_code": Rows("keys", 0, ("first", 1))},
        scaled=False,
    )
)
