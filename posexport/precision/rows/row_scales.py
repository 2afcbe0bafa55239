"""How rows of activations are brought to uint8: which zero point, and whether channels are smoothed before.

Decided on rows that the float32 graph computes from random tokens, so no texts are needed: outlier channels and the
bounds of activation functions are the weights' own, whatever is read. It changes errors only: a row is never clipped,
as its scale is its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from posexport.precision.calibration import Calibration, observed
from posexport.precision.linear import Projection
from posexport.precision.rows.weights import LIMIT
from posexport.precision.smoothing import Readers, readers, smoothing

#: 128: as far up as down; 24: ten times as far up as down, for what follows GELU (-0.17 at least), SiLU or ReLU
ZERO_POINTS = (128, 24)
#: SmoothQuant's migration strength (arXiv:2211.10438, equation 4): on MiniLM 0.5 to 0.8 differ by less than their noise
STRENGTH = 0.6
#: Smoothing takes a Mul and makes the weights' own error larger: it must leave less than this share of the squared
#: error.
WORTH = 0.7


@dataclass(frozen=True)
class RowScale:
    """x / ``smoothing``, then uint8 about ``zero`` with a scale for each row.

    Attributes:
        smoothing: [K], powers of two, so that dividing x and multiplying weights by them is exact; None: all are 1.
    """

    zero: int = ZERO_POINTS[0]
    smoothing: NDArray[np.float32] | None = None


PLAIN = RowScale()


def highest_step(zero: int) -> int:
    """A row's scale is its highest value / this."""
    return 255 - zero


def lowest_step(zero: int) -> int:
    """And not below its lowest / minus this: symmetric about 128, where one step more would fit."""
    return min(zero, 255 - zero)


def row_scales(
    model: ir.Model, chosen: Sequence[Projection], shared: set[ir.Value], calibration: Calibration
) -> dict[ir.Value, RowScale]:
    """Of every value that projections of the main graph read; ``shared``: weights that keep their values."""
    rows: dict[ir.Value, list[NDArray[np.float32]]] = {}
    for values in observed(model, chosen, calibration):
        for value, x in values.items():
            rows.setdefault(value, []).append(x)
    by_value = readers(chosen, shared)
    return {value: _choose(np.concatenate(several), by_value[value]) for value, several in rows.items()}


def _choose(x_RK: NDArray[np.float32], projections: Readers) -> RowScale:
    """The zero point of least error, then smoothing if it is worth it."""
    error, plain = min(((_error(x_RK, projections, each), each) for each in map(RowScale, ZERO_POINTS)), key=_first)
    if not projections.own:
        return plain
    factor = smoothing(np.abs(x_RK).max(0), projections.largest, STRENGTH)
    factor = np.exp2(np.rint(np.log2(factor))).astype(np.float32)
    smooth = [RowScale(zero, factor) for zero in ZERO_POINTS]
    least, best = min(((_error(x_RK, projections, each), each) for each in smooth), key=_first)
    return best if least < WORTH * error else plain


def _first(pair: tuple[float, RowScale]) -> float:
    return pair[0]


def _error(x_RK: NDArray[np.float32], projections: Readers, scale: RowScale) -> float:
    """The expected squared error of a row's products, in units of 1/12: a step's, as errors of rounding are even.

    Of activations: every channel errs by the row's step, times its weights; of weights: by their channel's step, times
    the row.
    """
    factor_K = np.ones(x_RK.shape[1], np.float32) if scale.smoothing is None else scale.smoothing
    x_RK = x_RK / factor_K
    steps_R = np.maximum(x_RK.max(1) / highest_step(scale.zero), -x_RK.min(1) / lowest_step(scale.zero))
    energy = float((x_RK.astype(np.float64) ** 2).sum(1).mean())
    error = 0.0
    for weight in projections.weights:
        matrix_KN = weight.array() * factor_K[:, None]
        error += float((steps_R.astype(np.float64) ** 2).mean()) * float(np.einsum("kn,kn->", matrix_KN, matrix_KN))
        error += energy * float(((np.abs(matrix_KN).max(0) / LIMIT).astype(np.float64) ** 2).sum())
    return error
