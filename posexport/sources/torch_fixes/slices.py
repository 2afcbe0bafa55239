"""Slices to ``-padding`` and between two sizes, whose length PyTorch's tracer does not find.

``x[:, :-padding]`` behind ``if padding:`` has no elements where the padding of other sizes is 0: a graph has one way
for all. ``x[:, left:end]`` has a new symbol for a length where ``end`` is a few less than the size.

Issue: none known. Seen in 2.13.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import SymInt, Tensor


def sliced(func: Callable[..., Any], args: Sequence[Any], _kwargs: Mapping[str, Any]) -> Tensor | None:
    """The result of such a call; None for others."""
    if func is not Tensor.__getitem__:
        return None
    x, index = args[0], list(args[1]) if isinstance(args[1], tuple) else [args[1]]
    if not all(element is Ellipsis or isinstance(element, slice) for element in index):
        return None
    if Ellipsis in index:
        place = index.index(Ellipsis)
        index[place : place + 1] = [slice(None)] * (x.dim() + 1 - len(index))
    narrowed = x
    for axis, part in enumerate(index):
        ends = _ends(part, x.shape[axis])
        if ends is not None:
            narrowed, index[axis] = narrowed.narrow(axis, ends[0], ends[1] - ends[0]), slice(None)
    if narrowed is x:
        return None
    return narrowed if all(part == slice(None) for part in index) else narrowed[tuple(index)]


def _ends(part: slice, size: Any) -> tuple[int, Any] | None:
    """Start and end of a slice to an end that is the size or less; None where PyTorch finds its length."""
    start, stop = part.start or 0, part.stop
    if not isinstance(stop, SymInt) or type(start) is not int or start < 0 or part.step not in (None, 1):
        return None
    if stop.node.hint is not None and stop.node.hint < 0:
        return start, size + stop
    less = size - stop
    if start and isinstance(less, SymInt) and less.node.expr.is_Integer:
        return start, stop
    return None
