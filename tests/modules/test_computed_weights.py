"""Weights that a module computes from its parameters in each call are stored, rounded once."""

from pathlib import Path

import onnx_ir as ir
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import spectral_norm
from torch.nn.utils.parametrizations import weight_norm

import posexport
from tests.small import proven
from tests.tolerances import agree


class Standardized(nn.Conv1d):
    """A convolution of weights whose mean is 0 and whose variance is 1, with a gain that is positive."""

    def __init__(self) -> None:
        super().__init__(48, 72, 3, padding=1)
        self.gain = nn.Parameter(torch.randn(72))

    def scaled(self) -> Tensor:
        weight = F.batch_norm(self.weight.reshape(1, 72, -1), None, None, training=True, eps=1e-6)
        return weight.reshape_as(self.weight) * F.softplus(self.gain)[:, None, None]

    def forward(self, x: Tensor) -> Tensor:
        return F.conv1d(x, self.scaled(), self.bias, padding=1).relu_()


class Channels(nn.Module):
    """Layers whose weights are divided by a norm, along the last axis."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.conv = spectral_norm(nn.Linear(40, 48)), Standardized()
        self.last = weight_norm(nn.Linear(72, 24))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.last(self.conv(self.first(x).mT).mT)
        return result


class Written(nn.Module):
    """A scale that is computed in place: it depends on what was written to it before."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.linear = nn.Parameter(torch.randn(8)), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        scale = self.weight * 1
        scale.mul_(2).exp_()
        result: Tensor = self.linear(x) * scale
        return result


def test_norms_of_weights_are_stored_rounded_once(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Channels().eval()
    proven(module, tmp_path / "b", example_inputs=(torch.randn(2, 9, 40),))
    graph = ir.load(tmp_path / "b/model.onnx").graph
    assert {node.op_type for node in graph} <= {"MatMul", "Gemm", "Add", "Transpose", "Conv", "Relu", "Reshape"}
    (stored,) = (value.const_value for value in graph.initializers.values() if value.shape == (72, 48, 3))
    assert stored is not None
    agree(stored.numpy(), module.conv.double().scaled().detach().numpy(), "one rounding", dtype="float32")


def test_what_is_written_in_place_is_left(tmp_path: Path) -> None:
    proven(Written().eval(), tmp_path / "b", example_inputs=(torch.randn(2, 9, 8),))


def test_they_stay_float_where_weights_are_quantized(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(weight_norm(nn.Linear(64, 64)), nn.Linear(64, 64)).eval()
    result = posexport.convert(module, tmp_path / "b", example_inputs=(torch.randn(2, 9, 64),), precision="int8")
    assert result.good
    graph = ir.load(tmp_path / "b/model.onnx").graph
    stored = [value.dtype for value in graph.initializers.values() if value.shape == (64, 64)]
    assert sorted(stored) == [ir.DataType.FLOAT, ir.DataType.INT8]
