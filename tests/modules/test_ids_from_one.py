"""Ids that begin at 1, alone and in columns of real numbers of which the last is not read."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import posexport
from posexport.errors import PosexportError
from tests.small import proven


class Classes(nn.Module):
    """A table of classes that are counted from 1."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.linear = nn.Embedding(9, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor, classes: Tensor) -> Tensor:
        result: Tensor = self.linear(x) + self.table(classes - 1)[:, None]
        return result


class Ions(nn.Module):
    """Peaks [B, T, 2] and for each row a mass, a charge from 1 on, and a number that is not read."""

    def __init__(self) -> None:
        super().__init__()
        self.charges, self.mass, self.peaks = nn.Embedding(4, 16), nn.Linear(1, 16), nn.Linear(2, 16)

    def forward(self, peaks: Tensor, ions: Tensor) -> Tensor:
        ion = self.mass(ions[:, [0]]) + self.charges(ions[:, 1].int() - 1)
        result: Tensor = self.peaks(peaks) + ion[:, None]
        return result


def test_classes_are_from_1_on(tmp_path: Path) -> None:
    inputs = {"x": torch.randn(3, 7, 16), "classes": torch.tensor([1, 9, 4])}
    done = proven(Classes(), tmp_path / "b", example_inputs=inputs)
    assert any("ids of classes are from 1 on" in remark for remark in done.remarks)
    with pytest.raises(PosexportError, match=r"classes holds 0 at \[1\]; it takes ids from 1 to 9"):
        posexport.load(tmp_path / "b").run({"x": np.zeros((2, 5, 16), np.float32), "classes": [1, 0]})


def test_charges_in_a_column(tmp_path: Path) -> None:
    ions = torch.tensor([[0.9, 2.0, 450.0], [1.2, 3.0, 400.0]])
    done = proven(Ions(), tmp_path / "b", example_inputs={"peaks": torch.rand(2, 9, 2), "ions": ions})
    assert done.manifest is not None
    (spec,) = (spec for spec in done.manifest.inputs if spec.name == "ions")
    assert (spec.axes, spec.column_sizes, spec.least) == (["batch_size", 3], [0, 4, 451], 2)
