"""Ranges of sizes that follow from one another: a trace is repeated with each until none is left.

``n <= 512`` and ``height < width`` of a trace say that the height is at most 511. PyTorch's exporter takes up one list
of suggestions and ends at the second one, ``Constraints violated``, though no graph holds a range: the proof at
many sizes decides whether what was traced is right beyond it. An axis that a suggestion makes a constant is refused.

Issue: none known. Seen in 2.13.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._dynamo.exc import UserError
from torch.export.dynamic_shapes import refine_dynamic_shapes_from_suggested_fixes

from posexport.sources.torch_fixes.patch import patched

#: lists of suggestions that are tried
_MOST = 3


@contextmanager
def with_ranges_refined() -> Iterator[None]:
    """Inside the block ``torch.export.export`` traces again with the ranges that it suggests."""
    export: Callable[..., Any] = torch.export.export

    def refined(*args: Any, dynamic_shapes: Any, **options: Any) -> Any:
        for _ in range(_MOST):
            try:
                return export(*args, dynamic_shapes=dynamic_shapes, **options)
            except UserError as err:
                dynamic_shapes = _suggested(err, dynamic_shapes)
        return export(*args, dynamic_shapes=dynamic_shapes, **options)

    with patched(torch.export, "export", refined):
        yield


def _suggested(err: UserError, shapes: Any) -> Any:
    """The shapes with the ranges that ``err`` suggests; raises it where it suggests none."""
    try:
        return refine_dynamic_shapes_from_suggested_fixes(err.msg, shapes)
    except Exception:  # noqa: BLE001 (an assertion, or a name that it does not know)
        raise err from None
