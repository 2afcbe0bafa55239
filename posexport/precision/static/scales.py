"""From ranges to static scales: per-channel smoothing, then one scale and zero point for the tensor.

SmoothQuant (Xiao et al. 2023, arXiv:2211.10438, section 4): activations are divided by a factor for each channel, and
the weights that read them multiplied by it, so that a channel of large values costs the others no precision. Here the
factor is a Mul of its own, not folded into the normalisation before: what a post-norm layer normalises is read by the
residual sum too.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from posexport.precision.linear import Projection
from posexport.precision.static.calibration import ChannelRange

#: The paper's migration strength: 0.5 there, for OPT; on MiniLM (256 texts) mean cosines are 0.9952 at 0.6, 0.9976 at
#: 0.7, 0.9982 at 0.8 and 0.9983 at 0.85, with the least at 0.8.
STRENGTH = 0.8
#: channels below this share of the largest are smoothed as if they had it: new texts may have more of them
_LEAST_SHARE = 1e-3


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
    ranges: Mapping[ir.Value, ChannelRange], chosen: Sequence[Projection], shared: set[ir.Value]
) -> dict[ir.Value, StaticScale]:
    """Of every value with a range, by the projections that read it; ``shared``: weights that keep their values.

    Zero points: after GELU values are -0.17 at least, and half of a symmetric range would be left unused.
    """
    readers: dict[ir.Value, list[Projection]] = defaultdict(list)
    sources: dict[ir.Value, set[ir.Value]] = defaultdict(set)
    for projection in chosen:
        readers[projection.x].append(projection)
        sources[projection.weight.value].add(projection.x)
    scales = {}
    for value, channels in ranges.items():
        weights = {each.weight.value: each.weight for each in readers[value]}
        smoothing = None
        if not any(weight in shared or len(sources[weight]) > 1 for weight in weights):
            largest = np.max([np.abs(weight.array()).max(1) for weight in weights.values()], axis=0)
            smoothing = smoothed(channels.magnitude, largest)
        scales[value] = _scale(channels, smoothing)
    return scales


def smoothed(activations: NDArray[np.float32], weights: NDArray[np.float32]) -> NDArray[np.float32]:
    """Factors [K] by the largest magnitudes of a channel's activations and weights, equation 4; geometric mean 1."""
    x = np.maximum(activations, _LEAST_SHARE * activations.max() + 1e-30).astype(np.float64)
    w = np.maximum(weights, _LEAST_SHARE * weights.max() + 1e-30).astype(np.float64)
    factor = x**STRENGTH / w ** (1 - STRENGTH)
    result: NDArray[np.float32] = (factor / np.exp(np.log(factor).mean())).astype(np.float32)
    return result


def _scale(channels: ChannelRange, smoothing: NDArray[np.float32] | None) -> StaticScale:
    divisor = np.float32(1) if smoothing is None else smoothing
    low, high = min(float((channels.low / divisor).min()), 0.0), max(float((channels.high / divisor).max()), 0.0)
    scale = np.float32(max((high - low) / 255, 1e-30))
    return StaticScale(scale, np.uint8(np.clip(round(-low / float(scale)), 0, 255)), smoothing)
