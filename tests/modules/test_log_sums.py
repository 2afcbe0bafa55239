"""``logcumsumexp`` is right where the first terms are far below the largest, and for infinite terms."""

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
