"""Equalities of sizes that PyTorch's solver cannot solve, or cannot print, end no trace.

``(n - 1) // 2`` and ``(n + 1) // 2 - 1`` are equal, and the tracer assumes so. Afterwards PyTorch solves each equality
for ``n`` and prints the solution, both for its advice alone. `DimConstraints.solve` raises NotImplementedError
for a floor division of a floor division (two convolutions of stride 2 and a mask cut ``[:, ::2][:, ::2]``),
`DimConstraints.prettify_results` AssertionError for rows that are padded to a multiple, ``(-n) % 8``. Without the
advice no axis is specialised: the check of the traced axes, and the proof at many lengths, see to that.

Issues: pytorch/pytorch 121286 (prettify_results), 131897 (one case of solve, fixed). Seen in 2.13; the second in
``torch.export.export`` alone, not through ``torch.onnx.export``.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from torch.fx.experimental.symbolic_shapes import DimConstraints

from posexport.sources.torch_fixes.patch import patched


@contextmanager
def with_unsolved_sizes() -> Iterator[None]:
    """Inside the block an equality that PyTorch cannot solve or print is left as it is."""
    solve, prettify = DimConstraints.solve, DimConstraints.prettify_results

    def solve_or_leave(self: DimConstraints) -> None:
        with suppress(NotImplementedError):
            solve(self)

    def prettify_or_leave(self: DimConstraints, *args: Any, **kwargs: Any) -> str:
        with suppress(AssertionError):
            return prettify(self, *args, **kwargs)
        return ""

    with (
        patched(DimConstraints, "solve", solve_or_leave),
        patched(DimConstraints, "prettify_results", prettify_or_leave),
    ):
        yield
