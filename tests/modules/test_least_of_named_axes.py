"""Named axes get the least size that a module needs, as those that are found do."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.small import OfFeatures, proven

D = 5
X = torch.randn(2, 9, D, generator=torch.Generator().manual_seed(0))
AXES = {"features": ["batch_size", "sequence_length", D]}


@pytest.mark.parametrize(
    ("function", "least"),
    [
        (lambda x: x.topk(3, 1).values, 3),
        (lambda x: F.pad(x.transpose(1, 2), (2, 3), mode="reflect"), 4),
        (lambda x: x.var(1), 2),
        (lambda x: x.diff(dim=1), 2),
        (lambda x: x.cumsum(1), 1),
    ],
)
def test_least(function: Callable[[Tensor], Tensor], least: int, tmp_path: Path) -> None:
    done = proven(OfFeatures(function), tmp_path / "b", example_inputs={"features": X}, axes=AXES)
    assert done.manifest.limits.min_length == least


@pytest.mark.parametrize("function", [lambda x: x.amax(1), lambda x: x.relu().amax(1), lambda x: x.amin(1)])
def test_a_maximum_reads_all_tokens(function: Callable[[Tensor], Tensor], tmp_path: Path) -> None:
    done = proven(OfFeatures(function), tmp_path / "b", example_inputs={"features": X})
    assert done.manifest.inputs[0].axes == ["batch_size", "sequence_length", D]


def test_what_is_beyond_the_first_elements_is_left_out(tmp_path: Path) -> None:
    done = proven(OfFeatures(lambda x: x[:, :, :4].cumsum(1)), tmp_path / "b", example_inputs={"features": X[:, :, :4]})
    assert done.manifest.inputs[0].axes == ["batch_size", "sequence_length", 4]
