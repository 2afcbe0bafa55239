"""``torch.lgamma`` in a graph, at positive, negative, small and large numbers."""

from pathlib import Path

import numpy as np
import onnxruntime
import torch
from torch import Tensor, nn

import posexport
from tests.tolerances import agree_each


class Gamma(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.lgamma()


def test_log_gamma(tmp_path: Path) -> None:
    posexport.convert(Gamma(), tmp_path / "b", example_inputs=(torch.rand(2, 9) + 0.5,), verify=False)
    session = onnxruntime.InferenceSession(tmp_path / "b/model.onnx", providers=["CPUExecutionProvider"])
    numbers = torch.cat([torch.linspace(-20, 20, 4001), torch.logspace(-30, 36, 200), -torch.logspace(-30, 3, 200)])
    numbers = torch.cat([numbers, torch.tensor([torch.inf])])
    x = numbers.view(1, -1)
    want = x.double().lgamma().numpy()
    (got,) = session.run(None, {"x": x.numpy()})
    finite = np.isfinite(want)
    np.testing.assert_array_equal(got[~finite], want[~finite])
    agree_each(got[finite], want[finite], "one rounding", dtype="float32")
