"""Floor division of sizes in traced graphs, compared with Python's at every size."""

import contextlib
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from posexport.sources.torch_fixes.exporter_output import without_exporter_output
from posexport.sources.torch_fixes.floor_division import with_floor_division


class Sizes(nn.Module):
    def __init__(self, compute: Any) -> None:
        super().__init__()
        self.compute = compute

    def forward(self, x: Tensor) -> Tensor:
        return x.sum() + torch.arange(1) + self.compute(x.shape[0])


def _exported(compute: Any, fix: Any = with_floor_division) -> Any:
    axes = {"x": {0: torch.export.Dim("n")}}
    with without_exporter_output(), fix():
        return torch.onnx.export(
            Sizes(compute).eval(), (), kwargs={"x": torch.zeros(7)}, dynamic_shapes=axes, dynamo=True, verbose=False
        )


@pytest.mark.parametrize(
    "compute",
    [
        lambda n: (12 - n) // 2,
        lambda n: -(-n // 4),
        lambda n: (n - 5) // 3,
        lambda n: n // -3,
    ],
)
def test_it_rounds_down(compute: Any) -> None:
    model = _exported(compute).model_proto.SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    for n in range(1, 20):
        (got,) = session.run(None, {"x": np.zeros(n, np.float32)})
        assert got[0] == compute(n), n


def test_it_is_still_needed() -> None:
    model = _exported(lambda n: (12 - n) // 2, contextlib.nullcontext).model_proto.SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    (got,) = session.run(None, {"x": np.zeros(13, np.float32)})
    assert got[0] == 0  # -1 // 2 is -1


@pytest.mark.parametrize("compute", [lambda n: n // 2, lambda n: (n + 1) // 2])
def test_what_is_never_negative_is_one_node(compute: Any) -> None:
    operators = [node.op_type for node in _exported(compute).model.graph]
    assert operators.count("Div") == 1
    assert "Mod" not in operators
