"""Maps of numbers in another size, as ``torch.nn.functional.interpolate`` computes them (``align_corners=False``).

Shape letters: H height, W width.
"""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
#: Keys' cubic convolution kernel as PyTorch has it
_CUBIC = -0.75


def interpolate(maps: Floats, size: tuple[int, int], mode: Literal["bilinear", "bicubic"] = "bilinear") -> Floats:
    """``maps`` [..., H, W] with the height and width ``size``."""
    rows, columns = (
        _weights(old, new, cubic=mode == "bicubic").astype(maps.dtype)
        for old, new in zip(maps.shape[-2:], size, strict=True)
    )
    resized: Floats = rows @ maps @ columns.T
    return resized


def _weights(old: int, new: int, *, cubic: bool) -> NDArray[np.float64]:
    """The weight of every old place in every new one, [new, old]; beyond an end is the place at the end."""
    centre = (np.arange(new) + 0.5) * (old / new) - 0.5
    if not cubic:
        centre = centre.clip(min=0)
    first = np.floor(centre).astype(np.int64)
    share = centre - first
    taps = _cubic(share) if cubic else np.stack((1 - share, share), -1)
    start = first - 1 if cubic else first
    weights = np.zeros((new, old))
    for place in range(taps.shape[1]):
        np.add.at(weights, (np.arange(new), (start + place).clip(0, old - 1)), taps[:, place])
    return weights


def _cubic(share: NDArray[np.float64]) -> NDArray[np.float64]:
    """The kernel at the four places around a point, [new, 4]."""
    near, far = np.stack((share, 1 - share), -1), np.stack((share + 1, 2 - share), -1)
    inner = ((_CUBIC + 2) * near - (_CUBIC + 3)) * near**2 + 1
    outer = ((_CUBIC * far - 5 * _CUBIC) * far + 8 * _CUBIC) * far - 4 * _CUBIC
    return np.stack((outer[:, 0], inner[:, 0], inner[:, 1], outer[:, 1]), -1)
