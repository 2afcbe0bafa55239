"""Outputs that a module computes of all rows together, of one size: sums, histograms, centres of classes."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from posexport.modules.live_module import module_source
from tests.small import proven

X = torch.randn(4, 9, 5, generator=torch.Generator().manual_seed(0))


class Of(nn.Module):
    """Features, and a function of all of them."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(5, 7), function

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        x = self.layer(features)
        return x, self.function(x)


def _centres(x: Tensor) -> Tensor:
    ids = x.argmax(-1).flatten()
    return torch.zeros(7, 7).index_add(0, ids, x.flatten(0, 1))


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x: x.median()[None], [1]),
        (lambda x: torch.zeros(7).scatter_add(0, x.argmax(-1).flatten(), x.amax(-1).flatten()), [7]),
        (_centres, [7, 7]),
    ],
)
def test_of_all_rows(function: Callable[[Tensor], Tensor], shape: list[int], tmp_path: Path) -> None:
    module = Of(function).eval()
    done = proven(module, tmp_path / "b", example_inputs={"features": X})
    assert f"output_1: one tensor {shape} for the whole batch, which changes with every row of it" in done.remarks
    assert not module_source(module, {"features": X}).promises.batch_invariant


def test_what_no_row_changes_keeps_the_promise() -> None:
    source = module_source(Of(lambda x: x.new_ones(3) * 2).eval(), {"features": X})
    assert source.promises.batch_invariant
