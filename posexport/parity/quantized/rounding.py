"""Activations as a graph rounds them, in any precision of PyTorch."""

import torch
from torch import Tensor

from posexport.parity.quantized.records import Rounding

#: the largest magnitude of a row that is taken for zeros
_TINY = 1e-30
#: of a step: so much float32 runs are shifted before they are rounded. Where a graph falls to the other side of a tie
#: is chance; PyTorch's own float32 run, which tolerances follow, must not be spared by luck at a few points
TIES = 2.0**-11


def rounded(x: Tensor, how: Rounding) -> Tensor:
    """``x`` [..., K] as a product reads it."""
    if how.kind == "exact":
        return x
    wide = x if x.dtype == torch.float64 else x.float()
    shift = 0.0 if x.dtype == torch.float64 else _shift(wide)
    if how.kind == "static":
        zero, step = how.zero, torch.tensor(how.step, dtype=wide.dtype)
        result = (torch.clamp(torch.round(wide / step + shift) + zero, 0, 255) - zero) * step
    elif how.kind == "rows":
        result = _rows(wide, how.zero, shift)
    else:
        result = _blocks(wide, how.size, shift)
    return result.to(x.dtype)


def _shift(x: Tensor) -> float:
    """Up to `TIES` up or down, by the bits of ``x``: two runs that should agree, as with other neighbours, differ."""
    bits = int(x.contiguous().view(torch.int32).sum(dtype=torch.int64))
    # the golden ratio of 2^32 spreads also sums whose low bits are zeros, those of bfloat16
    return TIES * ((bits * 0x9E3779B1 >> 28) % 16 - 7.5) / 7.5


def _rows(x: Tensor, zero: int, shift: float) -> Tensor:
    """uint8 about ``zero``: the highest value of a row is 255, or what its lowest asks for."""
    high, low = 255 - zero, min(zero, 255 - zero)
    top = torch.maximum(x.amax(-1, keepdim=True), -x.amin(-1, keepdim=True) * (high / low)).clamp(min=_TINY)
    # steps are those of float32: a graph has them so
    scale = (top / high).float().to(x.dtype) if x.dtype != torch.float64 else top / high
    return (torch.clamp(torch.round(x / scale + shift) + zero, 0, 255) - zero) * scale


def _blocks(x: Tensor, size: int, shift: float) -> Tensor:
    """int8, symmetric: the largest magnitude of a block is 127."""
    k = x.shape[-1]
    padded = torch.nn.functional.pad(x, (0, -k % size)).reshape(*x.shape[:-1], -1, size)
    scale = padded.abs().amax(-1, keepdim=True) / 127
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    return (torch.round(padded / scale + shift) * scale).flatten(-2)[..., :k]
