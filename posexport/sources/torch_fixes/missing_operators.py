"""Operators that PyTorch's exporter has no translation of, in those that it has.

Of equal elements ``median`` and ``kthvalue`` may find another one than PyTorch's, which promises none. A running
product is multiplied up by doubling: each step of a loop takes twice as many elements together as the one before.

Issue: none known. Seen in 2.13 with onnxscript 0.7.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from onnxscript import FLOAT, script
from onnxscript import opset18 as op18
from onnxscript.values import Opset
from torch import Tensor
from torch.onnx._internal.exporter import _decomp

from posexport.sources.torch_fixes.log_sums import along_rows
from posexport.sources.torch_fixes.patch import patched

_aten = torch.ops.aten


@script(Opset("posexport.torch", 1), default_opset=op18)  # type: ignore[untyped-decorator]
def _products(x_RT: FLOAT[...]) -> FLOAT[...]:
    length = op18.Shape(x_RT, start=1, end=2)
    one = op18.CastLike(op18.Constant(value_float=1.0), x_RT)
    shift = op18.Constant(value_ints=[1])
    zero = op18.Constant(value_ints=[0])
    is_left = op18.Squeeze(shift < length)
    products = op18.Identity(x_RT)
    while is_left:
        products = products * op18.Pad(products, op18.Concat(zero, shift, zero, -shift, axis=0), one)
        shift = shift + shift
        is_left = op18.Squeeze(shift < length)
    return products


def _cumprod(x: Any, dim: int, dtype: int = -1) -> Any:
    return along_rows(_products, x if dtype == -1 else op18.Cast(x, to=dtype), dim)


#: translations by PyTorch's operator
TRANSLATIONS: dict[Callable[..., Any], Callable[..., Any]] = {_aten.cumprod.default: _cumprod}


def _kthvalue(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    found = torch.topk(x, k, dim, largest=False)
    one, other = (each.narrow(dim, k - 1, 1) for each in (found.values, found.indices))
    return (one, other) if keepdim else (one.squeeze(dim), other.squeeze(dim))


def _median(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return _kthvalue(x, (x.shape[dim] + 1) // 2, dim, keepdim)


def _median_of_all(x: Tensor) -> Tensor:
    return _median(x.reshape(-1), 0)[0]


def _searchsorted(
    ordered: Tensor,
    x: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    if sorter is not None:
        ordered = ordered.gather(-1, sorter)
    one, other = x.unsqueeze(-1), ordered.unsqueeze(-2)
    below = other <= one if right or side == "right" else other < one
    return below.sum(-1, dtype=torch.int32 if out_int32 else torch.int64)


def _hypot(one: Tensor, other: Tensor) -> Tensor:
    largest = torch.maximum(one.abs(), other.abs())
    unit = torch.where(largest == 0, 1.0, largest)  # squares of large numbers overflow
    return largest * ((one / unit).square() + (other / unit).square()).sqrt()


def _copysign(x: Tensor, other: Tensor) -> Tensor:
    return torch.where((other < 0) | (1 / other < 0), -x.abs(), x.abs())  # or minus zero


def _fmax(one: Tensor, other: Tensor) -> Tensor:
    return torch.where(one.isnan(), other, torch.where(other.isnan(), one, torch.maximum(one, other)))


def _fmin(one: Tensor, other: Tensor) -> Tensor:
    return torch.where(one.isnan(), other, torch.where(other.isnan(), one, torch.minimum(one, other)))


_DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    _aten.kthvalue.default: _kthvalue,
    _aten.median.dim: _median,
    _aten.median.default: _median_of_all,
    _aten.searchsorted.Tensor: _searchsorted,
    _aten.hypot.default: _hypot,
    _aten.copysign.Tensor: _copysign,
    _aten.fmax.default: _fmax,
    _aten.fmin.default: _fmin,
}


@contextmanager
def with_missing_operators() -> Iterator[None]:
    """Inside the block the exporter decomposes them."""
    table: Callable[..., dict[Any, Callable[..., Any]]] = _decomp.create_onnx_friendly_decomposition_table

    def more(registered: Any) -> dict[Any, Callable[..., Any]]:
        return {**table(registered), **_DECOMPOSITIONS}

    with patched(_decomp, "create_onnx_friendly_decomposition_table", more):
        yield
