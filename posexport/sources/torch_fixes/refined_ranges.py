"""Ranges of sizes that follow from one another: a trace is repeated with each until none is left.

``n <= 512`` and ``height < width`` of a trace say that the height is at most 511. PyTorch's exporter takes up one list
of suggestions and ends at the second one, ``Constraints violated``, though no graph holds a range: the proof at
many sizes decides whether what was traced is right beyond it. An axis that a suggestion makes a constant is refused.

``_n = Dim('_n', min=3)``, ``n = 2*_n - 1`` is suggested where sizes with ``n // 2`` are compared: the solver takes
its remainder at the example for the one of all sizes (`DimConstraints.rewrite_with_congruences`). A trace of odd sizes
alone has ``n // 2 + 1`` in place of ``n - n // 2``, which is wrong at even ones. So ``n >= 5`` is tried first.

Issue: none known. Seen in 2.13.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._dynamo.exc import UserError
from torch.export.dynamic_shapes import refine_dynamic_shapes_from_suggested_fixes

from posexport.sources.torch_fixes.patch import patched

#: lists of suggestions that are tried
_MOST = 3
#: a size by another one, of which the least may follow
_MULTIPLE = re.compile(
    r"_(\w+) = Dim\('_\1'(?:, min=(\d+))?.*\)((?:\n.*)*?)\n *\1 = (\d+)\*_\1(?: ([+-]) (\d+))?$", re.MULTILINE
)


@contextmanager
def with_ranges_refined() -> Iterator[None]:
    """Inside the block ``torch.export.export`` traces again with the ranges that it suggests."""
    export: Callable[..., Any] = torch.export.export

    def refined(*args: Any, dynamic_shapes: Any, **options: Any) -> Any:
        for number in range(_MOST):
            try:
                return export(*args, dynamic_shapes=dynamic_shapes, **options)
            except UserError as err:
                said = err.msg if number else _MULTIPLE.sub(_of_all_sizes, err.msg)
                dynamic_shapes = _suggested(err, said, dynamic_shapes)
        return export(*args, dynamic_shapes=dynamic_shapes, **options)

    with patched(torch.export, "export", refined):
        yield


def _of_all_sizes(found: re.Match[str]) -> str:
    """The range of a size whose multiples alone were suggested."""
    name, least, between, step, sign, more = found.groups()
    # PyTorch's least size of an axis is 2 where none is named
    size = int(step) * int(least or 2) + int(f"{sign or ''}{more or 0}")
    return f"{name} = Dim('{name}', min={size}, max=oo){between}"


def _suggested(err: UserError, said: str, shapes: Any) -> Any:
    """The shapes with the ranges that ``said`` suggests; raises ``err`` where it suggests none."""
    try:
        return refine_dynamic_shapes_from_suggested_fixes(said, shapes)
    except Exception:  # noqa: BLE001 (an assertion, or a name that it does not know)
        raise err from None
