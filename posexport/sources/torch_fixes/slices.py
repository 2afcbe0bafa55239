"""``x[:, :-padding]`` behind ``if padding:``, which has no elements where the padding of other sizes is 0.

A graph has one way for all sizes, so that it counts from the start: the end is the size less the padding.

Reason: Python's ``-0`` is 0. Seen in 2.13.
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
    ends = [_end(part, size) for part, size in zip(index, x.shape, strict=False)]
    if all(end is None for end in ends):
        return None
    part: Tensor = x[tuple(part if end is None else slice(end) for part, end in zip(index, ends, strict=True))]
    return part


def _end(part: Any, size: Any) -> Any:
    """The end of a slice from the start to a negative symbol, counted from the start; None for others."""
    stop = part.stop
    # asked whether it is 0, a symbol would be known to be what it is in the trace
    if isinstance(part.start, SymInt) or part.start or not isinstance(stop, SymInt) or part.step not in (None, 1):
        return None
    return size + stop if stop.node.hint is not None and stop.node.hint < 0 else None
