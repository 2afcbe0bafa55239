"""Keys and values that a KV cache keeps in 8 bits, with a scale for each token of each KV head.

One int8 tensor [B, G, S, D + 2] holds the D rounded channels of a head and its scale ``m 2^e``, as m and e: e is -24 to
15, so that float16 has the scale too, and m is the least whole number that keeps the largest channel within 127 steps,
64 to 127 between these bounds. New tokens attend to rounded keys and values as well, so that results do not depend on
how tokens are divided into calls. KIVI (Liu et al., arXiv:2402.02750), section 3, measures what this and other choices
cost.

Shape letters: B batch, G KV heads, T new tokens, S past and new tokens, D head size.
"""

import math

import torch
from torch import Tensor

from posexport.graph.ops.tracing import traced_as
from posexport.nn.ties import tie_shift

#: channels that hold the scale
EXTRA = 2
_MOST = 127
#: of exponents
_LOWEST, _HIGHEST = -24, 15
#: powers of two by exponent: negative indices count from the end
_POWERS = tuple(2.0**exponent for exponent in (*range(_HIGHEST + 1), *range(_LOWEST, 0)))
#: so much a logarithm may err
_ERROR = 2.0**-10
#: a call of few tokens has few numbers that could fall to the other side of a tie
_SHIFTS = 4


def rounded(k_BGTD: Tensor, v_BGTD: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values as the cache keeps them, int8 [B, G, T, D + 2]; together where both have one shape."""
    if k_BGTD.shape[-1] != v_BGTD.shape[-1]:
        return _rounded(k_BGTD), _rounded(v_BGTD)
    k, v = _rounded(torch.cat((k_BGTD, v_BGTD), 1)).chunk(2, 1)
    return k, v


def _rounded(x_BGTD: Tensor) -> Tensor:
    largest = x_BGTD.abs().amax(-1, keepdim=True)
    # half precision has none of three digits; that of zero, minus infinity, has the lowest exponent
    logarithm = torch.log(largest.to(torch.promote_types(largest.dtype, torch.float32))) * (1 / math.log(2))
    exponent = torch.ceil(logarithm + (_ERROR - 2 * math.log2(_MOST))).clamp(_LOWEST, _HIGHEST)
    power = _power(exponent, x_BGTD.dtype)
    mantissa = torch.ceil(largest / _MOST / power).clamp(1, _MOST)
    whole = torch.round(x_BGTD / (mantissa * power) + _SHIFTS * tie_shift(x_BGTD)).clamp(-_MOST, _MOST)
    return torch.cat((whole, mantissa, exponent), -1).to(torch.int8)


def restored(kept_BGSD: Tensor, dtype: torch.dtype) -> Tensor:
    """Keys or values that ``kept_BGSD`` [B, G, S, D + 2] stands for, [B, G, S, D]."""
    whole, mantissa, exponent = torch.split(kept_BGSD, [kept_BGSD.shape[-1] - EXTRA, 1, 1], -1)
    return _scaled(whole, mantissa.to(dtype) * _power(exponent, dtype))


def _power(exponent: Tensor, dtype: torch.dtype) -> Tensor:
    """2 to the power of ``exponent``, by a table: no rounding."""
    return _looked_up(torch.tensor(_POWERS, dtype=dtype, device=exponent.device), exponent)


def _gather(table: Tensor, indices: Tensor) -> Tensor:
    """ONNX's Gather counts negative indices from the end, as Python does; the tracer would correct them for that."""
    found: Tensor = torch.onnx.ops.symbolic(
        "::Gather", (table, indices.to(torch.int32)), dtype=table.dtype, shape=indices.shape, version=13
    )
    return found


@traced_as(_gather)
def _looked_up(table: Tensor, indices: Tensor) -> Tensor:
    return table[indices.to(torch.int64)]


def _dequantize(whole_BGSD: Tensor, scale_BGS1: Tensor) -> Tensor:
    """One DequantizeLinear by tokens: a product with a scale for each row of 64 takes ONNX Runtime 4 times as long."""
    flat = whole_BGSD.reshape(-1, whole_BGSD.shape[-1])
    real: Tensor = torch.onnx.ops.symbolic(
        "::DequantizeLinear",
        (flat, scale_BGS1.reshape(-1)),
        attrs={"axis": 0},
        dtype=scale_BGS1.dtype,
        shape=flat.shape,
        version=21,
    )
    return real.reshape(whole_BGSD.shape)


@traced_as(_dequantize)
def _scaled(whole_BGSD: Tensor, scale_BGS1: Tensor) -> Tensor:
    return whole_BGSD.to(scale_BGS1.dtype) * scale_BGS1
