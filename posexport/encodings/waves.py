"""Sines and cosines of a position at many frequencies, as all sinusoidal encodings take them."""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from posexport.errors import PosexportError

#: sines and cosines in turn, or all sines before all cosines
Layout = Literal["interleaved", "half"]


def check_layout(encoding: str, layout: str) -> None:
    """PosexportError unless ``layout`` is one of `Layout`."""
    if layout not in get_args(Layout):
        raise PosexportError(f"{encoding}: layout must be interleaved or half, got {layout!r}")


def frequencies(size: int, base: float = 10000.0) -> list[float]:
    """``base^(-2i / size)``, one for every pair of channels. Python floats: ``module.half()`` cannot round them."""
    return [base ** (-2 * i / size) for i in range((size + 1) // 2)]


def waves(positions: Tensor, frequencies: Sequence[float], size: int, layout: Layout, dtype: torch.dtype) -> Tensor:
    """[...] positions -> [..., size], in ``dtype`` or float32, whichever is wider; an odd size has one sine more.

    ``positions`` are integers, or real numbers that are already that wide: the product with a frequency is the first
    that is rounded.
    """
    wide = torch.promote_types(dtype, torch.float32)
    frequency_F = torch.tensor(frequencies, dtype=wide, device=positions.device)
    angle = positions[..., None].to(wide) * frequency_F
    both = (angle.sin(), angle.cos())
    found = torch.stack(both, -1).flatten(-2) if layout == "interleaved" else torch.cat(both, -1)
    return found[..., :size]
