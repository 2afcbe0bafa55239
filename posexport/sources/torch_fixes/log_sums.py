"""Logarithms of sums that overflow as the exporter writes them.

``logcumsumexp`` is written as ``log(cumsum(exp(x - max(x)))) + max(x)``, which is minus infinity where the terms so far
are far below the largest: in minGRU, whose logarithms grow with the position, the first tokens of a long sequence are
lost. Here each step of a loop adds up twice as many terms as the one before, by ``logaddexp``.

``logaddexp`` is written as ``log(exp(a) + exp(b))``, infinite from 89 on, and ``logsigmoid``, of which forget gates are
made, as ``log(sigmoid(x))``, minus infinity below -103.

Issue: none known. Seen in 2.13 with onnxscript 0.7.
"""

from collections.abc import Callable
from typing import Any

import torch
from onnxscript import FLOAT, script
from onnxscript import opset18 as op18
from onnxscript.values import Opset


@script(Opset("posexport.torch", 1), default_opset=op18)  # type: ignore[untyped-decorator]
def _sums(x_RT: FLOAT[...]) -> FLOAT[...]:
    length = op18.Shape(x_RT, start=1, end=2)
    lowest = op18.CastLike(op18.Constant(value_float=float("-inf")), x_RT)
    shift = op18.Constant(value_ints=[1])
    zero = op18.Constant(value_ints=[0])
    is_left = op18.Squeeze(shift < length)
    sums = op18.Identity(x_RT)
    while is_left:
        before = op18.Pad(sums, op18.Concat(zero, shift, zero, -shift, axis=0), lowest)
        gap = op18.Where(sums == before, op18.CastLike(0.0, sums), op18.Abs(sums - before))  # of two infinities
        sums = op18.Max(sums, before) + op18.Log(1.0 + op18.Exp(-gap))
        shift = shift + shift
        is_left = op18.Squeeze(shift < length)
    return sums


def along_rows(of_rows: Callable[[Any], Any], x: Any, dim: int) -> Any:
    """``of_rows``, a function of [R, T], with axis ``dim`` of ``x`` as its last."""
    rank = len(x.shape)
    if rank == 0:
        return x
    order = [axis for axis in range(rank) if axis != dim % rank] + [dim % rank]
    last = op18.Transpose(x, perm=order)
    shape = op18.Shape(last)
    rows = op18.Reshape(last, op18.Concat(op18.Constant(value_ints=[-1]), op18.Shape(last, start=rank - 1), axis=0))
    back = [order.index(axis) for axis in range(rank)]
    return op18.Transpose(op18.Reshape(of_rows(rows), shape), perm=back)


def _logcumsumexp(x: Any, dim: int) -> Any:
    return along_rows(_sums, x, dim)


def _logaddexp(one: Any, other: Any) -> Any:
    zero = op18.CastLike(op18.Constant(value_float=0.0), one)
    gap = op18.Where(op18.Equal(one, other), zero, op18.Abs(op18.Sub(one, other)))  # of two infinities
    return op18.Add(op18.Max(one, other), op18.Softplus(op18.Neg(gap)))


def _log_sigmoid(x: Any) -> Any:
    return op18.Neg(op18.Softplus(op18.Neg(x)))


#: translations by PyTorch's operator
TRANSLATIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.ops.aten.logcumsumexp.default: _logcumsumexp,
    torch.ops.aten.logaddexp.default: _logaddexp,
    torch.ops.aten.log_sigmoid.default: _log_sigmoid,
}
