"""What all tests share: one tolerance table, and the check that an oracle stands on its own."""

import inspect
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any

import numpy as np
import pytest
import torch

#: How far two results may lie apart, in units of the dtype's eps, of the largest value that is wanted. One reason each.
TOLERANCE = {
    "operator": (16, "sums of at most some hundred products in another order"),
    "operator in half precision": (2, "sums are kept wider; one rounding of each of two sums"),
    "encoding": (16, "sums of at most some hundred products in another order"),
    "encoding in half precision": (2, "tables and sums are kept wider; one rounding of each of two sums"),
    "same values": (0, "nothing is computed, or the same in the same order"),
    "attention": (64, "two softmaxes of the same numbers in another order"),
}


@pytest.fixture(autouse=True)
def denormals_kept() -> Iterator[None]:
    """The first session of a process that `posexport.load` opens takes denormals as 0; the next test keeps them."""
    yield
    torch.set_flush_denormal(False)


@pytest.fixture(scope="session")
def agree() -> Callable[..., None]:
    """``agree(got, want, "kind", dtype)``: equal shapes, and values within the tolerance of that kind.

    ``factor`` widens it where the bound itself grows, such as with the position in a sine's angle.
    """

    def check(got: Any, want: Any, kind: str, dtype: Any, factor: float = 1.0) -> None:
        got, want = np.asarray(got).astype(np.float64), np.asarray(want).astype(np.float64)
        assert got.shape == want.shape
        units, reason = TOLERANCE[kind]
        bound = units * factor * float(np.finfo(dtype).eps) * np.abs(want).max()
        worst = np.abs(got - want).max()
        assert worst <= bound, f"off by {worst:.3g}, allowed {bound:.3g} ({kind}: {reason})"

    return check


def _codes(code: CodeType) -> list[CodeType]:
    return [code, *(inner for c in code.co_consts if isinstance(c, CodeType) for inner in _codes(c))]


def own_helpers(function: FunctionType) -> set[str]:
    """Names of posexport's objects that ``function`` uses, in functions nested in it too."""
    module = inspect.getmodule(function)
    ours = {
        name
        for name, value in vars(module).items()
        if (getattr(value, "__module__", None) or getattr(value, "__name__", "")).split(".")[0]
        in ("posexport", module.__name__)
        or type(value).__module__.split(".")[0] == "posexport"
    }
    used = {name for code in _codes(function.__code__) for name in code.co_names}
    return (used & ours) | {name for name in used if name.split(".")[0] == "posexport"}


@pytest.fixture(scope="session")
def helpers_of() -> Callable[[FunctionType], set[str]]:
    """`own_helpers`."""
    return own_helpers


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run the tests marked all too: they take long")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--all"):
        return
    left_out = [item for item in items if item.get_closest_marker("all")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
