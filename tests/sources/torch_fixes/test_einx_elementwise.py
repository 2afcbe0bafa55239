"""Elementwise equations by permutations and broadcasting: the values are einsum's and NumPy's, sizes stay symbolic."""

from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from posexport.sources.torch_fixes.einx_elementwise import SymbolicEinx, elementwise
from tests.tolerances import agree


class Einx(ModuleType):
    """In place of the package: every call counts."""

    def __init__(self) -> None:
        super().__init__("einx")
        self.calls = list[str]()

    def subtract(self, equation: str, *operands: Any, **options: Any) -> str:
        self.calls.append(equation)
        return equation

    where = add = subtract


def of(*shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(sum(shape)).normal(size=shape))


@pytest.mark.parametrize(
    ("equation", "first", "second"),
    [
        ("j, i -> i j", (7,), (5,)),
        ("b n h, b h n d -> b h n d", (2, 7, 5), (2, 5, 7, 3)),
        ("j, i -> 1 i j", (7,), (5,)),
    ],
)
def test_it_is_the_difference_of_every_pair(equation: str, first: tuple[int, ...], second: tuple[int, ...]) -> None:
    x, y = of(*first), of(*second)
    terms, out = equation.split(" -> ")
    got = SymbolicEinx(Einx()).subtract(equation, x, y)
    # numpy.einsum has no ones: all ones of the other operand in their place
    first_term, second_term = (term.replace(" ", "") for term in terms.split(","))
    axes = out.replace(" ", "").replace("1", "")
    pair = f"{first_term},{second_term}->{axes}"
    expected = np.einsum(pair, x.numpy(), np.ones(second)) - np.einsum(pair, np.ones(first), y.numpy())
    assert got.ndim == len(out.split())
    agree(got.reshape(expected.shape), expected, "operator", np.float64)


def test_a_number_is_an_operand_without_axes() -> None:
    mask, x = of(2, 7) > 0, of(2, 7, 5)
    got = SymbolicEinx(Einx()).where("b n, b n d, -> b n d", mask, x, 0.0)
    agree(got, np.where(mask.numpy()[..., None], x.numpy(), 0), "operator", np.float64)


@pytest.mark.parametrize(
    "equation",
    ["... j, ... i -> ... i j", "b n d, s d -> (b s) n d", "j, i", "i, i -> i i", "(a b), i -> a b i", "i, j -> i"],
)
def test_einx_computes_other_equations(equation: str) -> None:
    einx = Einx()
    assert SymbolicEinx(einx).subtract(equation, of(6), of(5)) == equation
    assert SymbolicEinx(einx).subtract("i, j -> i j", of(6), of(5), graph=True) == "i, j -> i j"
    assert einx.calls == [equation, "i, j -> i j"]


class Distances(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        at = torch.arange(x.shape[1])
        out: Tensor = elementwise(torch.subtract, str, "j, i -> i j", at, at) @ x
        return out


def test_sizes_stay_symbolic() -> None:
    """In a trace the graph takes another length."""
    example = torch.ones(2, 6, 3, dtype=torch.int64)
    shapes = {"x": {1: torch.export.Dim.DYNAMIC}}
    program = torch.export.export(Distances(), (example,), dynamic_shapes=shapes, strict=False).module()
    x = torch.arange(2 * 9 * 3).reshape(2, 9, 3)
    expected = (np.arange(9)[None] - np.arange(9)[:, None]) @ x.numpy()
    assert np.array_equal(program(x).numpy(), expected)
