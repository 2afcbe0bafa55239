"""GPTQ: weights rounded one row after the other, each row's error made up for by the rows that are not rounded yet.

Frantar et al. 2023 (arXiv:2210.17323), sections 3 and 4: the Cholesky factor of the inverse of H = X^T X (algorithm 1),
where X is what the weight is multiplied by on texts. Least is then the error of the products, not that of the weights.
Rows come in the order of their curvature, the largest first (the option of the authors' code that they call activation
order), with scales that are known before: all-MiniLM-L6-v2 has a cosine of 0.992 then over 500 sentences, 0.990 in the
order of the rows, and 0.967 to nearest.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from posexport.precision.blocks.rounding import Floats, Rounded, nearest
from posexport.precision.calibration import Calibration, observed
from posexport.precision.linear import Projection

#: of the mean of H's diagonal, added to the diagonal: channels that texts hardly use have next to no curvature. The
#: paper's; five times as much changes the mean cosine on MiniLM by less than 0.001
DAMPING = 0.01
#: rows whose errors reach the rows behind them in one product
_TOGETHER = 128


@dataclass(frozen=True)
class Factor:
    """What is known of the inputs of a weight [K, N].

    Attributes:
        order: [K], its rows, the one of the largest curvature first.
        upper: [K, K], the Cholesky factor of the inverse of H, of rows in that order.
    """

    order: NDArray[np.intp]
    upper: Floats


def factors(model: ir.Model, chosen: Sequence[Projection], calibration: Calibration) -> dict[ir.Value, Factor]:
    """The factor of every weight that projections of the main graph read; a shared weight has all its inputs'.

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
    known: dict[frozenset[ir.Value], Factor] = {}
    for values_read in read.values():
        key = frozenset(values_read)
        if key not in known:
            known[key] = factor(np.sum([moments[value] for value in values_read], axis=0))
    return {weight: known[frozenset(values_read)] for weight, values_read in read.items()}


def factor(moments: NDArray[np.float64]) -> Factor:
    """Of H = ``moments`` [K, K], dampened."""
    curvature = np.diag(moments)
    order = np.argsort(-curvature, kind="stable")
    damping = max(DAMPING * float(curvature.mean()), float(np.finfo(np.float32).tiny))
    dampened = moments[np.ix_(order, order)] + damping * np.eye(len(moments))
    return Factor(order, np.linalg.cholesky(np.linalg.inv(dampened)).T.astype(np.float32))


def second_order(matrix: Floats, known: Factor, bits: int, size: int) -> Rounded:
    """``matrix`` [K, N] in blocks of its rows, with the scales of `nearest`."""
    k, n = matrix.shape
    half, upper = 1 << (bits - 1), known.upper
    scales = nearest(matrix, bits, size).scales
    left_NK = matrix.T[:, known.order].astype(np.float64)
    values = np.full((n, scales.shape[1] * size), half, np.uint8)
    for first in range(0, k, _TOGETHER):
        end = min(first + _TOGETHER, k)
        errors = np.empty((n, end - first))
        for turn in range(first, end):
            row = known.order[turn]
            scale = scales[:, row // size].astype(np.float64)
            whole = np.clip(np.rint(left_NK[:, turn] / scale), -half, half - 1)
            values[:, row] = whole + half
            error = (left_NK[:, turn] - whole * scale) / upper[turn, turn]
            left_NK[:, turn:end] -= error[:, None] * upper[turn, turn:end]
            errors[:, turn - first] = error
        left_NK[:, end:] -= errors @ upper[first:end, end:]
    return Rounded(values.reshape(n, -1, size), scales)
