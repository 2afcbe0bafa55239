"""Calls of installed packages' modules that need a range of values, a side of an image, or another operator."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import posexport
from posexport.errors import PosexportError
from posexport.modules.live_module import module_source
from tests.small import proven
from tests.tolerances import agree

D = 6


class OfNoise(nn.Module):
    """A denoiser that takes a logarithm of the level of noise, as k-diffusion's; ``checks``: it rejects others."""

    def __init__(self, *, checks: bool = False) -> None:
        super().__init__()
        self.linear, self.checks = nn.Linear(D, D), checks

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        if self.checks and bool((sigma < 0).any()):
            raise ValueError("noise has no negative level")
        return self.linear(x) * sigma.log()[:, None]  # type: ignore[no-any-return]


class Columns(nn.Module):
    """The columns of a line of text, as an OCR's: means over the height alone."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.pool = nn.Conv2d(1, D, 3, padding=1), nn.AdaptiveAvgPool2d((None, 1))

    def forward(self, x: Tensor) -> Tensor:
        means: Tensor = self.pool(self.convolution(x).permute(0, 3, 1, 2))
        return means.squeeze(3)


class Pooled(nn.Module):
    """Maxima along a sound."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.pool = nn.Conv1d(1, D, 5), nn.MaxPool1d(3)

    def forward(self, x: Tensor) -> Tensor:
        low = torch.clamp(self.convolution(x), 0, 50.0)
        return self.pool(low)  # type: ignore[no-any-return]


class Kernel(nn.Module):
    """A Gaussian process' kernel: distances between two sets of points."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([1.5]))

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return (-torch.cdist(x1 * self.scale, x2 * self.scale)).exp()


class Windows(nn.Module):
    """Rolls images that are larger than a window, as Swin's."""

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[2] > 20:
            x = x.roll((-2, -2), (2, 3))
        return F.avg_pool2d(x, 4, 4).cumsum(3)


def agrees(path: Path, module: nn.Module, inputs: dict[str, Tensor]) -> None:
    got = posexport.load(path).run({name: tensor.numpy() for name, tensor in inputs.items()})["output"]
    with torch.no_grad():
        agree(got, module(**inputs), "model in float32", torch.float32)


@pytest.mark.parametrize("checks", [False, True])
def test_values_from_zero_on(tmp_path: Path, checks: bool) -> None:
    module = OfNoise(checks=checks)
    result = proven(module, tmp_path / "b", example_inputs={"x": torch.randn(2, D), "sigma": torch.tensor([0.4, 3.0])})
    assert [spec.positive is True for spec in result.manifest.inputs] == [False, True]
    (remark,) = [remark for remark in result.remarks if "from 0 on" in remark]
    assert remark.startswith("values of sigma ")
    agrees(tmp_path / "b", module, {"x": torch.randn(5, D), "sigma": torch.rand(5) + 0.1})
    assert posexport.verify(
        tmp_path / "b", against=module, example_inputs={"x": torch.randn(2, D), "sigma": torch.rand(2)}
    )


def test_values_of_both_signs_are_drawn_where_the_module_takes_them() -> None:
    source = module_source(nn.Linear(D, 3), {"input": torch.rand(2, D)})
    assert source.inputs[0].positive is not True


@pytest.mark.parametrize(
    ("module", "example", "other"),
    [
        (Columns(), {"x": torch.randn(2, 1, 12, 20)}, {"x": torch.randn(3, 1, 15, 31)}),
        (Pooled(), {"x": torch.randn(2, 1, 60)}, {"x": torch.randn(3, 1, 83)}),
        (
            Kernel(),
            {"x1": torch.randn(7, D), "x2": torch.randn(5, D)},
            {"x1": torch.randn(9, D), "x2": torch.randn(4, D)},
        ),
    ],
    ids=["means", "maxima", "distances"],
)
def test_operators_that_pytorch_s_exporter_has_not(
    tmp_path: Path, module: nn.Module, example: dict[str, Tensor], other: dict[str, Tensor]
) -> None:
    proven(module, tmp_path / "b", example_inputs=example)
    agrees(tmp_path / "b", module, other)


def test_images_from_a_side_on(tmp_path: Path) -> None:
    module = Windows()
    result = proven(module, tmp_path / "b", example_inputs={"x": torch.randn(2, 3, 64, 64)})
    assert result.manifest.limits.min_sizes["height"] == 21
    assert any("height is at least 21" in remark and "x.shape[2] > 20" in remark for remark in result.remarks)
    agrees(tmp_path / "b", module, {"x": torch.randn(1, 3, 36, 28)})
    with pytest.raises(PosexportError, match="height"):
        posexport.load(tmp_path / "b").run({"x": torch.randn(1, 3, 16, 28).numpy()})
