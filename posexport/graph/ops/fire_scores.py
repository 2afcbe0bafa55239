"""Scores of a small network of the normalised distance: the normaliser depends on the query's position (FIRE).

Li et al., "Functional Interpolation for Relative Positions Improves Long Context Transformers" (arXiv:2310.04418),
equation 6: ``scores[i, j] = f(psi(i - j) / n(i))`` with a network f of one hidden layer and rectifiers. Because of n(i)
a score is not a function of the distance; the network is evaluated for every pair, so that U hidden units need
[U, T, S] values: with tiling, T is a tile's queries. The caller computes ``psi`` for the distances
and ``n`` for the queries of a call, per row of the batch where rows number their tokens differently; indices that are
not listed take the nearest listed one.
"""

import numpy as np
from onnxscript import FLOAT, INT64, script
from onnxscript import opset18 as op

from posexport.graph.ops.operator import BY_DISTANCE, CASES_BY_DISTANCE, OPSET, Array, Operator, Rows, register
from posexport.graph.ops.skew import Distances, Skew, blocks, columns, toeplitz
from posexport.graph.ops.tensor import Tensor

#: hidden units in the cases
UNITS = 4


def oracle(
    outer_bias: Array,
    outer_weight: Array,
    inner_weight: Array,
    inner_bias: Array,
    by_distance: Array,
    lowest: Array,
    normaliser: Array,
    first: Array,
    qpos: Array,
    kpos: Array,
) -> Array:
    """One pair at a time: outer_bias [H], outer_weight [H, U], inner_weight and inner_bias [U].

    by_distance (psi) [1, W] from the distance lowest [1] up, normaliser [G, N] from the position first [1] up,
    qpos [T], kpos [S] -> [G, H, T, S]; G is the batch or 1.
    """
    out = np.zeros((len(normaliser), len(outer_bias), len(qpos), len(kpos)))
    for i, t in enumerate(qpos):
        n = normaliser[:, min(max(int(t) - int(first[0]), 0), normaliser.shape[1] - 1)]
        for j, s in enumerate(kpos):
            psi = by_distance[0, min(max(int(t) - int(s) - int(lowest[0]), 0), by_distance.shape[1] - 1)]
            units = np.maximum(np.outer(psi / n, inner_weight) + inner_bias, 0)
            out[:, :, i, j] = units @ outer_weight.T + outer_bias
    return out


def fire_scores(
    outer_bias: Tensor,
    outer_weight: Tensor,
    inner_weight: Tensor,
    inner_bias: Tensor,
    by_distance: Tensor,
    lowest: Tensor,
    normaliser: Tensor,
    first: Tensor,
    qpos: Tensor,
    kpos: Tensor,
) -> Tensor:
    """outer_bias [H] has the scores' dtype, the other tensors float32 or wider -> [G, H, T, S]."""
    rows, listed = normaliser.shape
    heads = outer_weight.shape[0]
    S = kpos.shape[0]
    out = outer_bias.new_empty(rows, heads, qpos.shape[0], S)
    for t, out_block in zip(blocks(qpos), blocks(out, 2), strict=True):
        by_column = by_distance[0, (columns(t, kpos) - lowest).clamp(0, by_distance.shape[1] - 1)]
        psi = toeplitz(by_column, t.shape[0], S)
        n = normaliser[:, (t - first).clamp(0, listed - 1)]
        ratio = (psi / n[..., None]).reshape(rows, 1, -1)
        hidden = (ratio * inner_weight[:, None]).add_(inner_bias[:, None]).relu_()
        out_block.copy_((outer_weight @ hidden + outer_bias.to(hidden.dtype)[:, None]).reshape(rows, heads, -1, S))
    return out


@script(OPSET, default_opset=op)
def FireScores(
    outer_bias: FLOAT[...],
    outer_weight: FLOAT[...],
    inner_weight: FLOAT[...],
    inner_bias: FLOAT[...],
    by_distance: FLOAT[...],
    lowest: INT64[...],
    normaliser: FLOAT[...],
    first: INT64[...],
    qpos: INT64[...],
    kpos: INT64[...],
) -> FLOAT[...]:
    T = op.Shape(qpos)
    S = op.Shape(kpos)
    index = op.Max(op.Min(Distances(qpos, kpos) - lowest, op.Shape(by_distance, start=1, end=2) - 1), [0])
    psi = Skew(op.Expand(op.Gather(by_distance, index, axis=1), op.Concat(T, T + S + 1, axis=0)), S)
    row = op.Max(op.Min(qpos - first, op.Shape(normaliser, start=1, end=2) - 1), [0])
    ratio = op.Div(psi, op.Unsqueeze(op.Gather(normaliser, row, axis=1), [2]))
    # the network, with all pairs in a row
    rows = op.Shape(normaliser, start=0, end=1)
    heads = op.Shape(outer_bias)
    pairs = op.Reshape(ratio, op.Concat(rows, [1], T * S, axis=0), allowzero=1)
    hidden = op.Relu(pairs * op.Unsqueeze(inner_weight, [1]) + op.Unsqueeze(inner_bias, [1]))
    bias = op.Unsqueeze(op.CastLike(outer_bias, normaliser), [1])
    by_head = op.CastLike(op.MatMul(outer_weight, hidden) + bias, outer_bias)
    return op.Reshape(by_head, op.Concat(rows, heads, T, S, axis=0), allowzero=1)


FIRE_SCORES = register(
    Operator(
        name="FireScores",
        eager=fire_scores,
        function=FireScores,
        oracle=oracle,
        cases=CASES_BY_DISTANCE,
        draw=lambda case, rng: [
            rng.standard_normal(case.heads),
            rng.standard_normal((case.heads, UNITS)),
            rng.standard_normal(UNITS),
            rng.standard_normal(UNITS),
            np.abs(rng.standard_normal((1, case.table))),
            np.array([-case.table // 2]),
            0.5 + np.abs(rng.standard_normal((case.batch, max(1, case.queries - 1)))),
            np.array([5 + case.offset]),
        ],
        takes=(),
        gives="scores",
        own=(
            "outer_bias",
            "outer_weight",
            "inner_weight",
            "inner_bias",
            "by_distance",
            "lowest",
            "normaliser",
            "first",
        ),
        scaled=False,
        wide=("outer_weight", "inner_weight", "inner_bias", "by_distance", "normaliser"),
        inner=("outer_weight",),
        rows={"by_distance": BY_DISTANCE, "normaliser": Rows("queries", 1, ("first", 0))},
        lead=lambda outer_bias, *tensors: (tensors[5].shape[0], outer_bias.shape[0]),
    )
)
