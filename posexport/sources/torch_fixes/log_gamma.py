"""``torch.lgamma``, for which ONNX has no operator: Stirling's series, in float64.

Below 8 it is taken at ``x + 8``, without the logarithm of ``x (x + 1) .. (x + 7)``; below 1/2 by the reflection
``log(pi / |sin(pi x)|) - lgamma(1 - x)``. The series is as exact as float64 there (Abramowitz and Stegun 6.1.41).

Issue: none known. Seen in 2.13 with onnxscript 0.7.
"""

import math
from functools import reduce
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from onnxscript import opset18 as op18

OPERATOR = torch.ops.aten.lgamma.default
#: from here on the series is taken
_LARGE = 8
#: the series' coefficients of x ** -1, x ** -3 ..
_SERIES = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)


def lgamma(x: Any) -> Any:
    """The translation of `OPERATOR`."""
    wide = op18.Cast(x, to=ir.DataType.DOUBLE)
    is_low = op18.Less(wide, _number(0.5))
    upper = op18.Where(is_low, op18.Sub(_number(1), wide), wide)
    is_small = op18.Less(upper, _number(_LARGE))
    factors = [op18.Add(op18.Min(upper, _number(_LARGE)), _number(n)) for n in range(_LARGE)]
    shift = op18.Where(is_small, op18.Log(reduce(op18.Mul, factors)), _number(0))
    far = op18.Where(is_small, op18.Add(upper, _number(_LARGE)), upper)
    inverse = op18.Reciprocal(far)
    square = op18.Mul(inverse, inverse)
    series = _number(_SERIES[-1])
    for coefficient in _SERIES[-2::-1]:
        series = op18.Add(op18.Mul(series, square), _number(coefficient))
    # (x - 1/2) log x - x, so that it is infinite where x is
    main = op18.Mul(op18.Sub(far, _number(0.5)), op18.Sub(op18.Log(far), _number(1)))
    stirling = op18.Add(op18.Add(main, op18.Mul(series, inverse)), _number(math.log(2 * math.pi) / 2 - 0.5))
    above = op18.Sub(stirling, shift)
    # the nearest whole number first: sin(pi x) of a large x has no digits left
    turn = op18.Sub(wide, op18.Round(wide))
    sine = op18.Abs(op18.Sin(op18.Mul(turn, _number(math.pi))))
    below = op18.Sub(op18.Log(op18.Div(_number(math.pi), sine)), above)
    return op18.CastLike(op18.Where(is_low, below, above), x)


def _number(value: float) -> Any:
    return op18.Constant(value=ir.tensor(np.array(value, np.float64)))
