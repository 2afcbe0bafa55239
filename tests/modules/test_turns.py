"""Sizes at which a line takes another branch than in the trace are compared: no usual size shows that it has two."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from sympy import Eq, Ge, Ne, Symbol  # type: ignore[import-untyped]
from torch import Tensor, nn
from torch.utils._sympy.functions import FloorDiv, Mod

import posexport
from posexport.proof.report.points import Point
from posexport.sources.torch_fixes.size_uses import Choice
from tests.small import proven

D, N = 12, Symbol("n", positive=True, integer=True)
X = torch.randn(2, 9, D, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("condition", "turns"),
    [
        (Eq(N, 100), [100]),
        (Ne(N, 7), [7]),
        (Ge(N, 2000), [2000]),
        (Ge(N, 5), [4]),
        (Ge(16 * N, 3200), [200]),
        (Ge(FloorDiv(N, 4), 300), [1200]),
        (Eq(Mod(N, 100), 0), [100]),
        (Ge(N, 1), []),
    ],
)
def test_the_sizes_that_are_decided_otherwise(condition: object, turns: list[int]) -> None:
    way = bool(condition.subs(N, 11))  # type: ignore[attr-defined]
    assert Choice("x", 1, N, condition, way=way, is_of_call=False, traced=11).turns() == turns


def _wrong(done: posexport.Conversion) -> list[Point]:
    assert done.report is not None
    return [point for point in done.report.points if point.verdict == "fail"]


class Turning(nn.Module):
    """Twice the features where ``turns`` says so."""

    def __init__(self, turns: Callable[[Tensor], bool], times: float = 2.0) -> None:
        super().__init__()
        self.turns, self.times = turns, times

    def forward(self, features: Tensor) -> Tensor:
        return features * self.times if self.turns(features) else features


@pytest.mark.parametrize(
    ("turns", "at"),
    [
        (lambda x: x.shape[1] == 100, {"length": 100}),
        (lambda x: x.shape[1] // 4 == 300, {"length": 1200}),
        (lambda x: x.shape[0] == 5, {"batch": 5}),
        (lambda x: x.shape[0] > 4, {"batch": 5}),
    ],
)
def test_a_branch_at_one_size_is_found(turns: Callable[[Tensor], bool], at: dict[str, int], tmp_path: Path) -> None:
    done = posexport.convert(Turning(turns), tmp_path / "b", example_inputs={"features": X})
    wrong = _wrong(done)
    assert [{name: getattr(point, name) for name in at} for point in wrong] == [at]
    assert any("was decided once for all sizes" in remark for remark in done.remarks)
    proven(Turning(turns, 1.0), tmp_path / "b", example_inputs={"features": X})


def test_rare_multiples_are_steps(tmp_path: Path) -> None:
    module = Turning(lambda x: x.shape[1] % 100 == 0)
    done = proven(module, tmp_path / "b", example_inputs={"features": X})
    assert any("sequence_length must be a multiple of 100" in remark for remark in done.remarks)


def test_a_branch_at_one_height_is_found(tmp_path: Path) -> None:
    pixels = torch.randn(2, 3, 24, 24)
    done = posexport.convert(Turning(lambda x: x.shape[2] == 87), tmp_path / "b", example_inputs={"features": pixels})
    wrong = _wrong(done)
    assert [dict(point.sizes)["height"] for point in wrong] == [87]


class Between(nn.Module):
    """Attention that is causal where there are as many keys as queries."""

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        if queries.shape[1] == keys.shape[1]:
            return F.scaled_dot_product_attention(queries, keys, keys, is_causal=True)
        return F.scaled_dot_product_attention(queries, keys, keys)


def test_a_branch_by_two_axes_is_found(tmp_path: Path) -> None:
    inputs = {"queries": torch.randn(2, 9, D), "keys": torch.randn(2, 7, D)}
    done = posexport.convert(Between(), tmp_path / "b", example_inputs=inputs)
    wrong = _wrong(done)
    assert wrong
    assert all(point.length == point.encoder_length for point in wrong)
    assert any("was decided once for all sizes" in remark for remark in done.remarks)
