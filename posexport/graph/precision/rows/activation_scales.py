"""How activations are brought to uint8: zero points and smoothing by rows, or static scales measured on texts.

By rows it is decided on what the float32 graph computes from random tokens, so no texts are needed: outlier channels
and the bounds of activation functions are properties of the weights. It changes errors only: a row is never clipped, as
its scale fits its largest value. Static scales are the ranges that texts have, per-channel smoothing, then one scale
and zero point for the tensor.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from posexport.graph.precision.calibration import Calibration, Readers, observed, readers, smoothing
from posexport.graph.precision.projections import Projection
from posexport.graph.precision.rows.weights import LIMIT

#: 128: as far up as down; 24: ten times as far up as down, for what follows GELU (-0.17 at least), SiLU or ReLU
ZERO_POINTS = (128, 24)
#: SmoothQuant's migration strength (arXiv:2211.10438, equation 4): on MiniLM 0.5 to 0.8 differ by less than their noise
STRENGTH_BY_ROW = 0.6
#: smoothing takes a Mul and makes the weights' error larger: it is used if the squared error falls below this share
LEAST_GAIN = 0.7


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
    """The zero point of least error, and smoothing if that lowers the error enough."""
    error, unsmoothed = min(
        ((_error(x_RK, projections, candidate), candidate) for candidate in map(RowScale, ZERO_POINTS)), key=_first
    )
    if not projections.exclusive:
        return unsmoothed
    factor = smoothing(np.abs(x_RK).max(0), projections.largest, STRENGTH_BY_ROW)
    factor = np.exp2(np.rint(np.log2(factor))).astype(np.float32)
    smooth = [RowScale(zero, factor) for zero in ZERO_POINTS]
    least, best = min(((_error(x_RK, projections, candidate), candidate) for candidate in smooth), key=_first)
    return best if least < LEAST_GAIN * error else unsmoothed


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


#: SmoothQuant's migration strength: 0.5 in the paper, for OPT; on MiniLM (256 texts) mean cosines are 0.9952 at 0.6,
#: 0.9976 at 0.7, 0.9982 at 0.8 and 0.9983 at 0.85, with the least at 0.8.
STATIC_STRENGTH = 0.8


@dataclass(frozen=True)
class ChannelRange:
    """The lowest and the highest value of each channel, [K], over all tokens of all texts."""

    low: NDArray[np.float32]
    high: NDArray[np.float32]

    @property
    def magnitude(self) -> NDArray[np.float32]:
        return np.maximum(np.abs(self.low), np.abs(self.high))


@dataclass(frozen=True)
class StaticScale:
    """How a tensor is quantised: x / ``smoothing`` / ``scale`` + ``zero``, uint8.

    Attributes:
        smoothing: [K]; None where weights are read elsewhere too, which one factor must fit.
    """

    scale: np.float32
    zero: np.uint8
    smoothing: NDArray[np.float32] | None


def static_scales(
    model: ir.Model, chosen: Sequence[Projection], shared: set[ir.Value], calibration: Calibration
) -> dict[ir.Value, StaticScale]:
    """Of every value that projections of the main graph read; ``shared``: weights that keep their values.

    Plain extremes: percentiles (99.99, 99.999) and the least squared error came out worse on MiniLM, where outliers
    matter. With zero points: after GELU values are -0.17 at least, and half of a symmetric range would be left unused.
    """
    ranges: dict[ir.Value, ChannelRange] = {}
    for values in observed(model, chosen, calibration):
        for value, x in values.items():
            low, high = x.min(0), x.max(0)
            if value in ranges:
                low, high = np.minimum(low, ranges[value].low), np.maximum(high, ranges[value].high)
            ranges[value] = ChannelRange(low, high)
    by_value = readers(chosen, shared)
    return {value: _scale(channels, by_value[value]) for value, channels in ranges.items()}


def _scale(channels: ChannelRange, projections: Readers) -> StaticScale:
    factor = smoothing(channels.magnitude, projections.largest, STATIC_STRENGTH) if projections.exclusive else None
    # powers of two: dividing x and multiplying weights by them changes no bit, and a proof reads them off the weights
    factor = None if factor is None else np.exp2(np.rint(np.log2(factor))).astype(np.float32)
    divisor = np.float32(1) if factor is None else factor
    low, high = min(float((channels.low / divisor).min()), 0.0), max(float((channels.high / divisor).max()), 0.0)
    scale = np.float32(max((high - low) / 255, 1e-30))
    return StaticScale(scale, np.uint8(np.clip(round(-low / float(scale)), 0, 255)), factor)
