"""A module that gives NaN for a row of padding alone: its points are drawn again, and a remark says so."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from posexport.conversion.convert import convert
from posexport.conversion.options import ConvertOptions
from posexport.errors import PosexportError

V, D = 4, 20
IDS = torch.randint(2, V, (2, 11), generator=torch.Generator().manual_seed(0))


class OfIds(nn.Module):
    """As in ESM-2: id 1 is padding, and keys are masked with -inf."""

    lowest = float("-inf")

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.qkv = nn.Embedding(V, D), nn.Linear(D, 3 * D)

    def masked(self, tokens: Tensor) -> Tensor:
        return tokens == 1

    def forward(self, tokens: Tensor) -> Tensor:
        q, k, v = self.qkv(self.embed(tokens)).chunk(3, -1)
        scores = (q @ k.mT).masked_fill(self.masked(tokens)[:, None], self.lowest)
        out: Tensor = scores.softmax(-1) @ v
        return out


class TwoMasked(OfIds):
    """Two ids are masked, so that rows of several ids give NaN."""

    def masked(self, tokens: Tensor) -> Tensor:
        return tokens < 3


def converted(module: nn.Module, into: Path) -> str:
    options = ConvertOptions(lengths=(1, 7), example_inputs={"tokens": IDS}, threads=1)
    done = convert(module.eval(), into, options)
    assert done.good
    return done.to_text()


def test_a_row_of_padding_alone_proves_nothing(tmp_path: Path) -> None:
    assert "gives NaN for a row of the id 1 alone, which it masks" in converted(OfIds(), tmp_path / "b")


def test_other_nans_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PosexportError, match="of the module itself is NaN or infinite"):
        converted(TwoMasked(), tmp_path / "b")
