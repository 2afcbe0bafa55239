"""How far results may lie apart in tests: one table, in units of a dtype's eps.

A bound is ``units * eps(dtype)``, of the largest value that is wanted (`agree`) or of each value (`agree_each`). Bounds
that something must exceed, ratios of sizes and times, and limits of accuracy that were measured are no tolerances.
"""

from typing import Any

import ml_dtypes
import numpy as np
import torch

#: kind -> units of the dtype's eps, and the reason
TOLERANCE = {
    "same values": (0, "nothing is computed, or the same in the same order"),
    "one rounding": (1, "what is computed wider is rounded once"),
    "rounded": (4, "a handful of operations, each rounded once"),
    "operator": (16, "sums of at most some hundred products in another order"),
    "operator in half precision": (2, "sums are kept wider; one rounding of each of two sums"),
    "encoding": (16, "sums of at most some hundred products in another order"),
    "encoding in half precision": (2, "tables and sums are kept wider; one rounding of each of two sums"),
    "frequencies": (8, "transformers takes powers and quotients in float32"),
    "attention": (64, "two softmaxes of the same numbers in another order"),
    "model in float32": (64, "layers one behind the other; proofs allow the same (posexport.proof.criterion)"),
    "model": (256, "layers one behind the other in float64, of which no test needs the last digits"),
    "model in half precision": (4, "layers one behind the other; proofs allow the same (posexport.proof.criterion)"),
    "another library": (128, "the same layers by another library, or rows in another batch"),
    "logarithms of sums": (1024, "exp and log of small sums differ by processor"),
    "scaled integers": (128, "products of whole numbers are exact; scales are float32 quotients of each row's largest"),
    "rounded activations": (1.25, "a value halfway between two steps may be rounded to the other side"),
    "ties": (0.25, "of some hundred activations one or two are halfway between two steps"),
    "inverse in float32": (8192, "its errors grow with the matrix's condition, some thousands"),
    "finite difference": (2.0**35, "a step of 1e-5 in float64: rounding and the third derivative leave so much"),
}


def eps(dtype: Any) -> float:
    """Of a floating type, by NumPy's or PyTorch's name; of integers one step of the largest value."""
    if isinstance(dtype, torch.dtype):
        return torch.finfo(dtype).eps
    if np.issubdtype(dtype, np.integer):
        return 1.0 / (np.iinfo(dtype).max + 1)
    return float(ml_dtypes.finfo(dtype).eps)  # type: ignore[no-untyped-call]


def allowed(kind: str, dtype: Any, factor: float = 1.0) -> float:
    """What an error may be, relative to the values; ``factor`` widens it where the bound itself grows.

    Such as with the position in a sine's angle, or with products one behind the other.
    """
    return TOLERANCE[kind][0] * factor * eps(dtype)


def agree(got: Any, want: Any, kind: str, dtype: Any, factor: float = 1.0) -> None:
    """Equal shapes, and values within the tolerance of that kind of the largest that is wanted."""
    got, want = _wide(got), _wide(want)
    _check(got, want, np.abs(want).max(), kind, dtype, factor)


def agree_each(got: Any, want: Any, kind: str, dtype: Any, factor: float = 1.0) -> None:
    """Equal shapes, and each value within the tolerance of its own size."""
    got, want = _wide(got), _wide(want)
    _check(got, want, np.abs(want), kind, dtype, factor)


def within(got: Any, want: Any, kind: str, dtype: Any) -> bool:
    """Whether `agree` finds nothing; NaN is within nothing."""
    got, want = _wide(got), _wide(want)
    return bool(np.abs(got - want).max() <= allowed(kind, dtype) * np.abs(want).max())


def _wide(values: Any) -> np.ndarray:
    if isinstance(values, torch.Tensor):
        values = values.detach().double()
    return np.asarray(values).astype(np.float64)


def _check(got: np.ndarray, want: np.ndarray, scale: Any, kind: str, dtype: Any, factor: float) -> None:
    assert got.shape == want.shape
    over = np.abs(got - want) - allowed(kind, dtype, factor) * scale
    if not (over <= 0).all():
        at = np.unravel_index(np.argmax(np.where(np.isnan(over), np.inf, over)), over.shape)
        place = f"{got[at]:.9g} for {want[at]:.9g} at {tuple(map(int, at))}"
        raise AssertionError(f"{place}: {allowed(kind, dtype, factor):.3g} is allowed ({kind}: {TOLERANCE[kind][1]})")
