"""Modules that move, cut and weight frequencies, as of Fourier neural operators, and that take logarithms of sizes."""

import math
import sys
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.small import proven

D = 6
X = torch.randn(2, 12, D, generator=torch.Generator().manual_seed(1))


class Operator(nn.Module):
    """Weights the frequencies around the middle, fewer for a sound that has fewer: neuraloperator's layer."""

    modes = 4

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(D, D, self.modes, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.fft.fftshift(torch.fft.fft(x.mT), dim=-1)
        n = spectrum.shape[-1]
        kept, middle = min(self.modes, n), n // 2
        part = slice(middle - kept // 2, middle + kept // 2 + kept % 2)
        cut = self.modes - kept
        weight = self.weight[..., slice(cut // 2, -cut // 2) if cut else slice(None)]
        weighted = torch.zeros([x.shape[0], D, n], dtype=spectrum.dtype)
        weighted[:, :, part] = torch.einsum("bdn,den->ben", spectrum[:, :, part], weight)
        return torch.fft.ifft(torch.fft.ifftshift(weighted, dim=-1)).real.mT


def test_frequencies_around_the_middle(tmp_path: Path) -> None:
    """The graph is of the side on which all of the layer's frequencies are there."""
    done = proven(Operator().eval(), tmp_path / "b", example_inputs={"x": X}, lengths=[4, 5, 9])
    assert done.manifest.limits.min_length == Operator.modes


class Rolled(nn.Module):
    """A shift by a part of the length, as of windows."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.roll(x, x.shape[1] // 3, 1) + torch.roll(x, (-(x.shape[1] // 2), 1), (1, 2)).cumsum(1)


def test_a_shift_by_a_size(tmp_path: Path) -> None:
    proven(Rolled().eval(), tmp_path / "b", example_inputs={"x": X}, lengths=[1, 2, 9])


class Logarithms(nn.Module):
    """A scale by the logarithm of the length, and half-lives up to it: LogN attention, Enformer's positions."""

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        lives = 2 ** torch.linspace(3.0, math.log(n) / math.log(2.0), D)
        return x * (1 + math.log(n, 512)) + math.log10(n) / lives + math.log2(n)


def test_logarithms_of_a_length(tmp_path: Path) -> None:
    proven(Logarithms().eval(), tmp_path / "b", example_inputs={"x": X}, lengths=[1, 2, 7, 16])


class Counted(nn.Module):
    """Positions of a range in Python, as of a parser's."""

    def forward(self, x: Tensor) -> Tensor:
        places = x.new_tensor(range(x.shape[1])) + torch.tensor(range(1, x.shape[1] + 1))
        return x * places[:, None] + len(range(D))


def test_positions_of_a_range(tmp_path: Path) -> None:
    proven(Counted().eval(), tmp_path / "b", example_inputs={"x": X}, lengths=[1, 2, 9])


def ordered(equation: str, *operands: Any) -> Tensor:
    """A product whose order depends on sizes as numbers; ``int`` is that of the module it stands in."""
    sizes = [int(size) for operand in operands for size in operand.shape]
    first, second, third = operands if max(sizes) > 0 else operands[::-1]
    return torch.einsum(equation, first, second, third)


class Contracted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Parameter(torch.randn(D, D)), nn.Parameter(torch.randn(D, D))

    def forward(self, x: Tensor) -> Tensor:
        contract = sys.modules["opt_einsum.contract"].ordered
        result: Tensor = contract("btd,de,ef->btf", x, self.left, self.right)
        return result


def test_an_order_of_products_by_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module with the name of opt_einsum's, which the environment of the tests has not."""
    scope: Any = ModuleType("opt_einsum.contract")
    scope.torch, scope.ordered = torch, FunctionType(ordered.__code__, vars(scope))
    monkeypatch.setitem(sys.modules, scope.__name__, scope)
    proven(Contracted().eval(), tmp_path / "b", example_inputs={"x": X}, lengths=[1, 9])
