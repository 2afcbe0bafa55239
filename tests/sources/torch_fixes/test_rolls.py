"""`rolls` is still needed, as in `test_still_needed`."""

from typing import Any

import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from posexport.sources.torch_fixes.exporter_output import without_exporter_output
from posexport.sources.torch_fixes.rolls import rolled
from tests.tolerances import agree

X = torch.randn(3, 13, generator=torch.Generator().manual_seed(0))


class Calls(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


def written(function: Any) -> Any:
    return torch.onnx.export(Calls(function), (X,), dynamo=True, dynamic_shapes=({1: Dim("T")},), verbose=False)


@pytest.mark.parametrize("shift", [torch.fft.fftshift, torch.fft.ifftshift])
def test_rolls(shift: Any) -> None:
    with without_exporter_output():
        with pytest.raises(torch.onnx.errors.OnnxExporterError, match="attribute type"):
            written(lambda x: shift(x, dim=1))
        graph = written(lambda x: rolled(shift, (x,), {"dim": 1}))
    session = onnxruntime.InferenceSession(graph.model_proto.SerializeToString())
    for length in (1, 8, 13):
        x = torch.randn(3, length)
        agree(session.run(None, {"x": x.numpy()})[0], shift(x, dim=1), "same values", torch.float32)
