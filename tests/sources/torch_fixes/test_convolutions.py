"""Convolutions in parts are PyTorch's, in float64."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from posexport.modules.axes.memory import Made
from posexport.sources.torch_fixes import convolutions
from tests.tolerances import agree


@pytest.mark.parametrize("part", [1, 2000])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_convolutions_are_pytorch_s(part: int, mode: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every number of axes, with strides, padding, dilation and groups."""
    monkeypatch.setattr(convolutions, "_PART", part)
    generator = torch.Generator().manual_seed(0)
    with mode():
        for axes, kernel, stride, padding, dilation, groups in itertools.product(
            (1, 2, 3), (1, 3, 4), (1, 2), (0, 2), (1, 2), (1, 2)
        ):
            convolve = (F.conv1d, F.conv2d, F.conv3d)[axes - 1]
            x = torch.randn(3, 4, *(11, 9, 10)[:axes], generator=generator, dtype=torch.float64)
            weight = torch.randn(4, 4 // groups, *[kernel] * axes, generator=generator, dtype=torch.float64)
            bias = torch.randn(4, generator=generator, dtype=torch.float64)
            for rows in (x, x[0]):
                expected = convolve(rows, weight, bias, stride, padding, dilation, groups)
                with convolutions.ConvolutionsInParts():
                    agree(
                        convolve(rows, weight, bias, stride, padding, dilation, groups),
                        expected,
                        "operator",
                        torch.float64,
                    )


def test_a_transposed_convolution_and_float32_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolutions, "_in_parts", None)
    x = torch.randn(2, 3, 8, 8)
    with torch.no_grad(), convolutions.ConvolutionsInParts():
        nn.Conv2d(3, 4, 3)(x)
        nn.ConvTranspose2d(3, 4, 3).double()(x.double())


def test_the_outputs_are_in_memory_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolutions, "_PART", 1 << 16)
    x, weight = torch.zeros(2, 1, 64, 64, dtype=torch.float64), torch.zeros(64, 1, 3, 3, dtype=torch.float64)
    with torch.no_grad(), Made() as made, convolutions.ConvolutionsInParts():
        outputs = F.conv2d(x, weight)
    assert made.bytes < 1.5 * outputs.nbytes
