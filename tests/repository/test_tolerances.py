"""Tests take their tolerances from one table: no literal one, no default one, and no row without a test."""

import ast
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.tolerances import TOLERANCE, agree, agree_each, allowed, within

FILES = {
    path.relative_to(Path(__file__).parents[1]).as_posix(): path for path in Path(__file__).parents[1].rglob("*.py")
}
#: functions whose tolerance is an argument, or a default
COMPARING = {"allclose", "assert_allclose", "assert_close", "approx", "isclose", "assert_array_almost_equal"}
ARGUMENTS = {"rtol", "atol"}
#: what is above 0 and below is a tolerance where something must be less
SMALL = 1e-3


def literal(text: str) -> Iterator[str]:
    """Lines of a test file that have a tolerance of their own."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            named = ast.unparse(node.func).split(".")[-1] in COMPARING
            if named or ARGUMENTS & {keyword.arg for keyword in node.keywords}:
                yield f"{node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.Compare) and any(
            isinstance(operator, ast.Lt | ast.LtE) and _small(bound)
            for operator, bound in zip(node.ops, node.comparators, strict=True)
        ):
            yield f"{node.lineno}: {ast.unparse(node)}"


def _small(bound: ast.expr) -> bool:
    """Whether a bound is, or adds or multiplies by, a small number; ``1 - 1e-9`` asks for a difference."""
    if isinstance(bound, ast.BinOp) and isinstance(bound.op, ast.Add | ast.Mult):
        return _small(bound.left) or _small(bound.right)
    return isinstance(bound, ast.Constant) and isinstance(bound.value, float) and 0 < bound.value < SMALL


@pytest.mark.parametrize("name", sorted(FILES.keys() - {"tolerances.py"}))
def test_no_test_has_a_tolerance_of_its_own(name: str) -> None:
    assert not list(literal(FILES[name].read_text()))


@pytest.mark.parametrize(
    "line",
    [
        "assert np.abs(a - b).max() < 1e-5 * np.abs(b).max()",
        "assert 0 < error <= limit <= 1e-5",
        "torch.testing.assert_close(a, b)",
        "assert a == pytest.approx(b)",
        "close(a, b, rtol=0.1)",
    ],
)
def test_a_literal_one_is_found(line: str) -> None:
    assert len(list(literal(line))) == 1


def test_what_must_be_exceeded_is_no_tolerance() -> None:
    assert not list(literal("assert np.abs(a - b).max() > 1e-5\nassert share < 0.02\nassert cosine < 1 - 1e-9"))


@pytest.mark.parametrize("kind", TOLERANCE)
def test_every_kind_has_a_reason_and_a_test(kind: str) -> None:
    _, reason = TOLERANCE[kind]
    assert len(reason.split()) >= 4
    used = f'"{kind}"'
    assert any(used in path.read_text() for name, path in FILES.items() if name != "tolerances.py")


def test_bounds_are_units_of_a_types_last_place() -> None:
    assert allowed("rounded", np.float32) == allowed("rounded", torch.float32) == 4 * 2.0**-23
    assert allowed("rounded", np.float64, 3) == 12 * 2.0**-52
    assert allowed("rounded", torch.bfloat16) == 4 * 2.0**-7
    assert allowed("rounded activations", np.int8) == 1.25 / 128


@pytest.mark.parametrize("check", [agree, agree_each])
def test_what_is_off_by_more_fails(check) -> None:
    want = np.array([1.0, 1e-6])
    check([1 + 4 * 2.0**-52, 1e-6], want, "rounded", np.float64)
    for got in ([1 + 6 * 2.0**-52, 1e-6], [1, np.nan], [np.inf, 1e-6]):
        assert not within(got, want, "rounded", np.float64)
        with pytest.raises(AssertionError, match=r"is allowed \(rounded: a handful"):
            check(got, want, "rounded", np.float64)
    with pytest.raises(AssertionError):
        check(want[:1], want, "same values", np.float64)


def test_small_values_may_have_errors_of_their_own_size_only() -> None:
    want = np.array([1.0, 1e-6])
    agree([1, 1e-6 + 2.0**-52], want, "rounded", np.float64)
    with pytest.raises(AssertionError, match=r"at \(1,\)"):
        agree_each([1, 1e-6 + 2.0**-52], want, "rounded", np.float64)
