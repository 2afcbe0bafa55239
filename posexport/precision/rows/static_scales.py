"""Static scales: the ranges that texts have, per-channel smoothing, then one scale and zero point for the tensor."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from posexport.precision.calibration import Calibration, observed
from posexport.precision.linear import Projection
from posexport.precision.smoothing import Readers, readers, smoothing

#: SmoothQuant's migration strength: 0.5 in the paper, for OPT; on MiniLM (256 texts) mean cosines are 0.9952 at 0.6,
#: 0.9976 at 0.7, 0.9982 at 0.8 and 0.9983 at 0.85, with the least at 0.8.
STRENGTH = 0.8


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

    Plain extremes: percentiles (99.99, 99.999) and the least squared error came out worse on MiniLM, whose outliers
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
    factor = smoothing(channels.magnitude, projections.largest, STRENGTH) if projections.own else None
    # powers of two: dividing x and multiplying weights by them changes no bit, and a proof reads them off the weights
    factor = None if factor is None else np.exp2(np.rint(np.log2(factor))).astype(np.float32)
    divisor = np.float32(1) if factor is None else factor
    low, high = min(float((channels.low / divisor).min()), 0.0), max(float((channels.high / divisor).max()), 0.0)
    scale = np.float32(max((high - low) / 255, 1e-30))
    return StaticScale(scale, np.uint8(np.clip(round(-low / float(scale)), 0, 255)), factor)
