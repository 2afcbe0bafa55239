"""Operators that the exporter has no translation of, at sizes and values that a proof does not draw."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor

from tests.small import OfFeatures, proven
from tests.tolerances import agree

X = torch.randn(2, 9, 5, generator=torch.Generator().manual_seed(0))
EDGES = torch.tensor([3e38, -3e38, 2.0, 2.0, -0.0, 0.0, -1.0, torch.inf, -torch.inf, torch.nan, torch.nan])


@pytest.mark.parametrize(
    ("function", "takes_all"),
    [
        (lambda x: x.median(1).values, False),
        (lambda x: x.median()[None], False),
        (lambda x: x.kthvalue(1, 1, keepdim=True).values, False),
        (lambda x: torch.searchsorted(x.sort(1).values.mT.contiguous(), x.mT.contiguous(), right=True), False),
        (lambda x: x.cumprod(1), False),
        (lambda x: torch.hypot(x, x.flip(1)), False),
        (lambda x: torch.copysign(x, x.flip(1)), True),
        (lambda x: torch.fmax(x, x.flip(1)), True),
        (lambda x: torch.fmin(x, x.flip(1)), True),
    ],
)
def test_missing(function: Callable[[Tensor], Tensor], takes_all: bool, tmp_path: Path) -> None:
    proven(OfFeatures(function), tmp_path / "b", example_inputs={"features": X})
    session = onnxruntime.InferenceSession(tmp_path / "b/model.onnx", providers=["CPUExecutionProvider"])
    edges = (EDGES if takes_all else EDGES[2:7])[None, :, None].expand(3, -1, 5)
    for x in (torch.randn(3, 40, 5), edges):
        want = function(x.double() if x.isfinite().all() else x).numpy()
        (got,) = session.run(None, {"features": x.contiguous().numpy()})
        if takes_all:  # the scale of an infinity would hide all others
            np.testing.assert_array_equal(got, want.astype(got.dtype))
        else:
            agree(got, want, "model in float32", dtype="float32")


def test_hypotenuses_of_large_numbers(tmp_path: Path) -> None:
    proven(OfFeatures(lambda x: torch.hypot(x, x.flip(1))), tmp_path / "b", example_inputs={"features": X})
    session = onnxruntime.InferenceSession(tmp_path / "b/model.onnx", providers=["CPUExecutionProvider"])
    x = torch.tensor([1e30, 1e-30, 0.0, 1e-30, 1e30])[None, :, None].expand(1, -1, 5)
    (got,) = session.run(None, {"features": x.contiguous().numpy()})
    agree(got, torch.hypot(x.double(), x.double().flip(1)).numpy(), "operator", dtype="float32")
