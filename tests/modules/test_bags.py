"""Bags of embeddings and adaptive maxima, at sizes and paddings that a proof does not draw."""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.small import proven
from tests.tolerances import agree


class Weighted(nn.Module):
    """A sum with a weight for each id."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(50, 5, mode="sum", padding_idx=-1)

    def forward(self, ids: Tensor, scales: Tensor) -> Tensor:
        return self.bag(ids, per_sample_weights=scales)  # type: ignore[no-any-return]


def _session(path: Path) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(path / "b/model.onnx", providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 0])
def test_bags(mode: Any, padding: int | None, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = nn.EmbeddingBag(50, 5, mode=mode, padding_idx=padding).eval()
    proven(module, tmp_path / "b", example_inputs={"input": torch.randint(1, 50, (3, 11))})
    for ids in (torch.tensor([[0, 0, 3], [0, 0, 0]]), torch.randint(0, 50, (2, 90)), torch.tensor([[49]])):
        (got,) = _session(tmp_path).run(None, {"input": ids.numpy()})
        agree(got, module(ids).detach().numpy(), "model in float32", dtype=np.float32)


def test_weighted_bags(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Weighted().eval()
    example = {"ids": torch.randint(1, 49, (3, 11)), "scales": torch.randn(3, 11)}
    proven(module, tmp_path / "b", example_inputs=example)
    ids, scales = torch.randint(0, 50, (2, 90)), torch.randn(2, 90)
    (got,) = _session(tmp_path).run(None, {"ids": ids.numpy(), "scales": scales.numpy()})
    agree(got, module(ids, scales).detach().numpy(), "model in float32", dtype=np.float32)


class Pooled(nn.Module):
    """The maxima of a grid of 3 by 5."""

    def forward(self, pixels: Tensor) -> Tensor:
        return F.adaptive_max_pool2d(pixels, (3, 5))


def test_adaptive_maxima(tmp_path: Path) -> None:
    proven(Pooled(), tmp_path / "b", example_inputs={"pixels": torch.randn(2, 3, 24, 24)})
    for size in ((1, 3, 3, 5), (2, 3, 31, 29), (1, 3, 64, 7)):
        pixels = torch.randn(size) - 9
        (got,) = _session(tmp_path).run(None, {"pixels": pixels.numpy()})
        np.testing.assert_array_equal(got, Pooled()(pixels).numpy())
