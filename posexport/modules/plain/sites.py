"""Calls of PyTorch's functions that may be about the token axis, read so that those of two lengths can be compared.

Shape letters: B batch, H heads, T tokens, D head size.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor

#: functions whose calls are counted, and what they are here
SITES = {
    torch.arange: "arange",
    Tensor.__getitem__: "slice",
    Tensor.narrow: "slice",
    torch.narrow: "slice",
    torch.cumsum: "sum",
    Tensor.cumsum: "sum",
    torch.matmul: "product",
    Tensor.matmul: "product",
    Tensor.__matmul__: "product",
    torch.bmm: "product",
    Tensor.bmm: "product",
    torch.baddbmm: "product",
    Tensor.baddbmm: "product",
}
#: a file and a line in it
Site = tuple[str, int]
#: whose lines make no calls of their own: PyTorch's, for its functions in Python, and posexport's
_INNER = (f"{Path(torch.__file__).parent}/", f"{Path(__file__).parents[2]}/")
_COMPARES = {"lt", "le", "gt", "ge", "less", "less_equal", "greater", "greater_equal", "tril", "triu", "clamp", "clip"}


@dataclass(frozen=True)
class Counting:
    """``torch.arange(start, end)``."""

    start: Any
    end: Any


@dataclass(frozen=True)
class Slicing:
    """``table[..., start:end, ...]`` along one axis of ``size``; ``whole`` has all rows, on the axis ``out`` of it."""

    start: Any
    end: Any
    size: Any
    out: int
    index: tuple[Any, ...]

    def whole(self, table: Tensor) -> Tensor:
        # a slice of everything is an operator that PyTorch's exporter has for real numbers alone
        return table if all(each == slice(None) for each in self.index) else table[self.index]


@dataclass(frozen=True)
class Multiplying:
    """``left @ right``."""

    left: Tensor
    right: Tensor


Read = Counting | list[Slicing] | Multiplying | None


def calling_site(frame: FrameType | None) -> Site:
    """The innermost line, of the user's code or of a library that it calls, of a call that is being made."""
    while frame is not None and frame.f_code.co_filename.startswith(_INNER):
        frame = frame.f_back
    return ("", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def read(kind: str, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Read:
    """A call of one of `SITES`, as far as it can be one of the token axis."""
    if kind == "arange":
        return _counting(args, kwargs)
    if kind == "sum":
        return None
    if kind == "product":
        operands = args[1:3] if func in (torch.baddbmm, Tensor.baddbmm) else args[:2]
        return Multiplying(*operands) if len(operands) == 2 else None
    if func is Tensor.__getitem__:
        return _slicing(args[0], args[1])
    if kwargs or len(args) != 4 or isinstance(args[2], Tensor):
        return None
    table, axis, start, length = args
    index: list[Any] = [slice(None)] * table.ndim
    index[axis] = slice(start, start + length)
    return _slicing(table, tuple(index))


def compares(func: Any) -> bool:
    """Whether ``func`` compares its first argument with a number, or cuts it there."""
    return getattr(func, "__name__", "").strip("_") in _COMPARES


def picks_last(x: Tensor, index: Any) -> bool:
    """Whether ``x[index]`` is the last row of the second axis, whole, with that axis or without."""
    if not isinstance(index, tuple) or len(index) < 2 or any(item != slice(None) for item in (index[0], *index[2:])):
        return False
    picked = range(x.shape[1])[index[1]] if isinstance(index[1], int | slice) else index[1]
    return (list(picked) if isinstance(picked, range | list) else [picked]) in ([-1], [x.shape[1] - 1])


def _counting(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Counting | None:
    given = dict(zip(("start", "end", "step") if len(args) > 1 else ("end",), args, strict=False))
    given |= {name: kwargs[name] for name in ("start", "end", "step") if name in kwargs}
    if not isinstance(given.get("step", 1), int | float) or given.get("step", 1) != 1 or "end" not in given:
        return None
    return Counting(given.get("start", 0), given["end"])


def _slicing(table: Tensor, index: Any) -> list[Slicing]:
    """What an index takes of every axis that it slices; nothing where it is more than numbers, slices and new axes."""
    index = index if isinstance(index, tuple) else (index,)
    if not all(item is None or item is Ellipsis or isinstance(item, int | slice | torch.SymInt) for item in index):
        return []
    if Ellipsis in index:
        at = index.index(Ellipsis)
        taken = sum(item is not None for item in index) - 1
        index = (*index[:at], *[slice(None)] * (table.ndim - taken), *index[at + 1 :])
    found, axis, out = [], 0, 0
    for place, item in enumerate(index):
        if isinstance(item, slice) and item.stop is not None and item.step in (None, 1):
            whole = (*index[:place], slice(None), *index[place + 1 :])
            found.append(Slicing(item.start or 0, item.stop, table.shape[axis], out, whole))
        axis += item is not None
        out += item is None or isinstance(item, slice)
    return found
