"""Operators that ONNX Runtime computes less accurately than PyTorch, in the forms that the passes write."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnxruntime import InferenceSession
from torch import Tensor, nn

from posexport.conversion.export.build import build
from posexport.graph.protos import all_nodes
from posexport.modules.live_module import module_source
from tests.small import recipe
from tests.tolerances import agree


class Refined(nn.Module):
    """The next box, from a box and a change, and a gate by another sigmoid."""

    def forward(self, x: Tensor) -> Tensor:
        box = x[..., :2].sigmoid()
        return torch.log(box.clamp(min=1e-9) / (1 - box).clamp(min=1e-9)) * (x[..., 2:] + 11).sigmoid()


class Transformed(nn.Module):
    """Frequencies of 57 samples, no power of two."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.view_as_real(torch.fft.rfft(x))


class Grouped(nn.Module):
    def __init__(self, groups: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm = nn.GroupNorm(groups, 6)
        for parameter in self.norm.parameters():
            nn.init.normal_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(x)
        return y


@pytest.mark.parametrize(("opset", "target"), [(18, "portable"), (23, "portable"), (24, "cuda")])
@pytest.mark.parametrize(
    ("module", "shape", "mean", "left"),
    [
        (Refined(), (4, 5, 4), -11.0, {"Sigmoid": 1}),
        (Transformed(), (4, 57), 0.0, {"DFT": 1}),
        (Grouped(3), (4, 6, 5), 30.0, {"GroupNormalization": 0}),
        (Grouped(6), (4, 6, 5), 30.0, {"GroupNormalization": 0}),
    ],
)
def test_as_accurate_as_pytorch(
    module: nn.Module,
    shape: tuple[int, ...],
    mean: float,
    left: dict[str, int],
    opset: int,
    target: str,
    tmp_path: Path,
) -> None:
    x = mean + torch.from_numpy(np.random.default_rng(0).standard_normal(shape, np.float32))
    source = module_source(module, {"x": x})
    build(source, tmp_path / "m.onnx", recipe(opset=opset, target=target))
    types = [node.op_type for node in all_nodes(onnx.load(tmp_path / "m.onnx").graph.node)]
    assert {name: types.count(name) for name in left} == left
    # CUDA has a kernel for it below opset 22
    assert target != "cuda" or "InstanceNormalization" not in types
    with torch.no_grad():
        exact, float32 = module.double()(x.double()), module.float()(x)
    (values,) = InferenceSession(tmp_path / "m.onnx").run(None, {"x": x.numpy()})
    assert np.abs(values - exact.numpy()).max() <= 4 * np.abs(float32.numpy() - exact.numpy()).max()


@pytest.mark.parametrize(("opset", "target"), [(18, "portable"), (23, "portable"), (24, "cuda")])
def test_a_group_of_a_long_sequence_is_as_accurate(opset: int, target: str, tmp_path: Path) -> None:
    """Sums of a million float32 one after another lose 1e-5: channels are averaged apart."""
    module = Grouped(1)
    source = module_source(module, {"x": torch.randn(2, 6, 40)})
    build(source, tmp_path / "m.onnx", recipe(opset=opset, target=target))
    types = [node.op_type for node in all_nodes(onnx.load(tmp_path / "m.onnx").graph.node)]
    assert not {"InstanceNormalization", "GroupNormalization"} & set(types)
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((1, 6, 200_000), np.float32))
    with torch.no_grad():
        exact = module.double()(x.double()).numpy()
    (values,) = InferenceSession(tmp_path / "m.onnx").run(None, {"x": x.numpy()})
    agree(values, exact, "operator", np.float32)


class Halved(nn.Module):
    """Normalises each channel of halves of the channels, which are rows of their own; [B, 8, T]."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.InstanceNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, length = x.shape
        out: Tensor = self.norm(x.reshape(batch * 2, 4, length))
        return out.reshape(batch, channels, length)


def test_a_reshape_before_an_instance_norm_makes_no_groups(tmp_path: Path) -> None:
    module = Halved()
    build(module_source(module, {"x": torch.randn(2, 8, 40)}), tmp_path / "m.onnx", recipe(opset=18, target="portable"))
    x = torch.randn(3, 8, 7) * torch.arange(1, 9)[:, None] + torch.arange(8)[:, None]
    (values,) = InferenceSession(tmp_path / "m.onnx").run(None, {"x": x.numpy()})
    agree(values, module.double()(x.double()).numpy(), "operator", np.float32)
