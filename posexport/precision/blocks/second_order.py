"""GPTQ: weights rounded one row after the other, each row's error made up for by the rows that are not rounded yet.

Frantar et al. 2023 (arXiv:2210.17323), sections 3 and 4, in the form of algorithm 1: rows in their order, and the
Cholesky factor of the inverse of H = X^T X, where X is what the weight is multiplied by on texts. Least is then the
error of the products, not that of the weights.
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from posexport.precision.blocks.rounding import Floats, Rounded, nearest
from posexport.precision.calibration import Calibration, observed
from posexport.precision.linear import Projection

#: of the mean of H's diagonal, added to the diagonal: channels that texts hardly use have next to no curvature. The
#: paper's; five times as much changes a cosine on MiniLM by less than 0.001
DAMPING = 0.01


def factors(model: ir.Model, chosen: Sequence[Projection], calibration: Calibration) -> dict[ir.Value, Floats]:
    """The factor [K, K] of every weight that projections of the main graph read; a shared weight has all its inputs'.

    A matrix for each value that is projected, all kept until the file is written.
    """
    moments: dict[ir.Value, NDArray[np.float64]] = {}
    for values in observed(model, chosen, calibration):
        for value, x in values.items():
            x64 = x.astype(np.float64)
            moments[value] = moments.get(value, 0.0) + x64.T @ x64
    read: dict[ir.Value, dict[ir.Value, None]] = defaultdict(dict)
    for projection in chosen:
        if projection.x in moments:
            read[projection.weight.value][projection.x] = None
    known: dict[frozenset[ir.Value], Floats] = {}
    for values_read in read.values():
        key = frozenset(values_read)
        if key not in known:
            known[key] = factor(np.sum([moments[value] for value in values_read], axis=0))
    return {weight: known[frozenset(values_read)] for weight, values_read in read.items()}


def factor(moments: NDArray[np.float64]) -> Floats:
    """The upper Cholesky factor of the inverse of ``moments`` [K, K], dampened."""
    damping = max(DAMPING * float(np.diag(moments).mean()), float(np.finfo(np.float32).tiny))
    dampened = moments + damping * np.eye(len(moments))
    upper: Floats = np.linalg.cholesky(np.linalg.inv(dampened)).T.astype(np.float32)
    return upper


def second_order(matrix: Floats, upper: Floats, bits: int, size: int) -> Rounded:
    """``matrix`` [K, N] in blocks of its rows; the scales of a block are those of `nearest` when its turn comes."""
    k, n = matrix.shape
    half = 1 << (bits - 1)
    left_NK = matrix.T.astype(np.float64)
    values = np.full((n, -(-k // size), size), half, np.uint8)
    scales = np.ones(values.shape[:2], np.float32)
    for block in range(values.shape[1]):
        first, end = block * size, min((block + 1) * size, k)
        scales[:, block] = nearest(left_NK[:, first:end].T.astype(np.float32), bits, size).scales[:, 0]
        errors = np.empty((n, end - first))
        for row in range(first, end):
            scale = scales[:, block].astype(np.float64)
            whole = np.clip(np.rint(left_NK[:, row] / scale), -half, half - 1)
            values[:, block, row - first] = whole + half
            error = (left_NK[:, row] - whole * scale) / upper[row, row]
            left_NK[:, row:end] -= error[:, None] * upper[row, row:end]
            errors[:, row - first] = error
        left_NK[:, end:] -= errors @ upper[first:end, end:]
    return Rounded(values, scales)
