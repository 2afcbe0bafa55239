"""Logarithms of sums are right for terms far below the largest, for large ones and for infinite ones."""

from pathlib import Path

import numpy as np
import onnxruntime
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import posexport
from tests.small import proven
from tests.tolerances import agree


class Recurrence(nn.Module):
    """A gated average of all tokens so far, by logarithms, as minGRU's: their terms grow with the position."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(24, 32)

    def forward(self, x: Tensor) -> Tensor:
        values, gates = self.linear(x).chunk(2, dim=-1)
        decay = -F.softplus(gates + 2).cumsum(1)
        return (decay + (values - F.softplus(-gates - 2) - decay).logcumsumexp(dim=1)).exp()


class Sums(nn.Module):
    """Of the logarithms of whole numbers, along an axis that is counted from the end."""

    def forward(self, x: Tensor) -> Tensor:
        return x.logcumsumexp(-2)


def test_terms_that_grow_with_the_position(tmp_path: Path) -> None:
    torch.manual_seed(0)
    proven(Recurrence(), tmp_path / "b", example_inputs=(torch.randn(2, 9, 24),))


def test_infinite_terms_and_steep_ones(tmp_path: Path) -> None:
    posexport.convert(Sums(), tmp_path / "b", example_inputs=(torch.randn(2, 9, 5),))
    session = onnxruntime.InferenceSession(tmp_path / "b/model.onnx", providers=["CPUExecutionProvider"])
    for length in (1, 2, 3, 5, 16, 17, 1025, 5000):
        x = torch.linspace(-300, 300, length)[None, :, None].repeat(3, 1, 5)
        x[1] = x[1].flip(0) * 0
        x[2, : length // 2] = -torch.inf
        x[0, length // 3 :, 1] = torch.inf
        want = x.double().logcumsumexp(1).numpy()
        (got,) = session.run(None, {"x": x.numpy()})
        finite = np.isfinite(want)
        np.testing.assert_array_equal(got[~finite], want[~finite])
        agree(got[finite], want[finite], "logarithms of sums", dtype="float32")


class OfTwo(nn.Module):
    """The logarithm of a sum of two, and of a forget gate."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.logaddexp(x, x.flip(1)), F.logsigmoid(x)


def test_large_terms(tmp_path: Path) -> None:
    posexport.convert(OfTwo(), tmp_path / "b", example_inputs=(torch.randn(2, 9, 5),))
    session = onnxruntime.InferenceSession(tmp_path / "b/model.onnx", providers=["CPUExecutionProvider"])
    x = torch.linspace(-1e4, 1e4, 85).reshape(1, 17, 5)
    for want, got in zip(OfTwo()(x.double()), session.run(None, {"x": x.numpy()}), strict=True):
        agree(got, want.numpy(), "logarithms of sums", dtype="float32")
    x[0, :3], x[0, -3:] = -torch.inf, torch.tensor([-torch.inf, torch.inf, 0, 1, 2])
    for want, got in zip((y.numpy() for y in OfTwo()(x)), session.run(None, {"x": x.numpy()}), strict=True):
        np.testing.assert_array_equal(np.isposinf(got), np.isposinf(want))
        np.testing.assert_array_equal(np.isneginf(got), np.isneginf(want))
