"""Sizes that a module computes in two ways, ``(n - 1) // 2`` and ``(n + 1) // 2 - 1``, are equal and traced as such.

PyTorch notes such an equality, and then tries to solve it for ``n`` and to put the result in words, both for its own
advice. It raises an error for a division in a division, as two convolutions of stride 2 give beside a mask cut
``[:, ::2][:, ::2]``, and for rows filled up to a multiple, ``(-n) % 8``. Without the advice no axis is fixed: the check
of the traced axes, and the proof at many lengths, stand behind it.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from torch.fx.experimental.symbolic_shapes import DimConstraints


@contextmanager
def size_equalities() -> Iterator[None]:
    """Inside the block an equality that cannot be solved, or not be told, is left as it is."""
    solve, tell = DimConstraints.solve, DimConstraints.prettify_results

    def solved(self: DimConstraints) -> None:
        with suppress(NotImplementedError):
            solve(self)

    def told(self: DimConstraints, *args: Any, **kwargs: Any) -> str:
        with suppress(AssertionError):
            return tell(self, *args, **kwargs)
        return ""

    DimConstraints.solve = solved  # type: ignore[method-assign]
    DimConstraints.prettify_results = told  # type: ignore[method-assign]
    try:
        yield
    finally:
        DimConstraints.solve = solve  # type: ignore[method-assign]
        DimConstraints.prettify_results = tell  # type: ignore[method-assign]
