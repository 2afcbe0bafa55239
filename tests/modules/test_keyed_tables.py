"""Tables that a module keeps by size: in a dict, or in the cache of a function."""

import functools
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import posexport
from posexport.base.spec import LengthContract
from posexport.modules.keyed_tables import with_lengths_of_tables
from tests.small import proven
from tests.tolerances import agree


class Keyed(nn.Module):
    """Positions in a dict by length and dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.tables = nn.Linear(8, 8), dict[tuple[int, torch.dtype], Tensor]()

    def forward(self, x: Tensor) -> Tensor:
        key = (x.shape[1], x.dtype)
        if key not in self.tables:
            self.tables[key] = positions(x.shape[1]).to(x.dtype)
        result: Tensor = self.linear(x) + self.tables[key].cos()
        return result


class Cached(Keyed):
    """Positions of a function that keeps its results."""

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.linear(x) + cached(x.shape[1]).cos()
        return result


class Shared(nn.Module):
    """Positions in a buffer of a submodule that two layers have."""

    def __init__(self, table: nn.Module | None = None) -> None:
        super().__init__()
        if table is None:
            table = Kept()
            self.first = Shared(table)
        self.linear, self.table = nn.Linear(8, 8), table

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x) if hasattr(self, "first") else x
        result: Tensor = self.linear(x) + self.table(x.shape[1]).cos()
        return result


class Kept(nn.Module):
    """Keeps positions in a buffer, as rotary-embedding-torch does."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(64, 8), persistent=False)

    def forward(self, length: int) -> Tensor:
        self.kept[:length] = positions(length)
        return self.kept[:length]


def positions(length: int) -> Tensor:
    return torch.arange(length)[:, None] * torch.arange(8) / 9


cached = functools.lru_cache(positions)


@pytest.mark.parametrize("kind", [Keyed, Cached, Shared])
def test_a_table_for_each_length_is_computed(tmp_path: Path, kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    module, x = kind().eval(), torch.randn(2, 13, 8)
    module(torch.randn(1, 7, 8))  # as after the module was used
    proven(module, tmp_path / "b", example_inputs={"x": x[:, :9]}, lengths=[1, 9], threads=1)
    (got,) = posexport.load(tmp_path / "b").run({"x": x.numpy()}).values()
    with torch.no_grad():
        agree(got, module(x), "model in float32", np.float32)


def test_a_table_that_was_made_otherwise_is_found_by_the_proof(tmp_path: Path) -> None:
    module = Keyed().eval()
    module.tables[37, torch.float32] = module.tables[37, torch.float64] = torch.randn(37, 8)
    assert with_lengths_of_tables(LengthContract(), module).boundaries == [37]
    done = posexport.convert(module, tmp_path / "b", example_inputs={"x": torch.randn(2, 9, 8)}, threads=1)
    assert not done.good
    assert not (tmp_path / "b").exists()
