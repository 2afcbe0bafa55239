"""Recorded calls of a submodule: its arguments and outputs at two lengths show which axes count tokens."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from posexport.encodings.positions import Positions

#: an argument, by its position or name
Key = int | str
Arguments = Mapping[Key, Any]


def by_key(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
    """Arguments by their position or name."""
    arguments: dict[Key, Any] = dict(enumerate(args))
    arguments.update(kwargs.items())
    return arguments


@dataclass(frozen=True)
class Call:
    """One call; its output is a tuple where it was a list."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any

    @property
    def arguments(self) -> Arguments:
        return by_key(self.args, self.kwargs)

    @property
    def outputs(self) -> tuple[Any, ...]:
        return self.output if isinstance(self.output, tuple) else (self.output,)


@contextmanager
def recorded(parts: Mapping[str, nn.Module]) -> Iterator[dict[str, list[Call]]]:
    """The calls of every submodule in ``parts`` inside the block, by name."""
    calls: dict[str, list[Call]] = {name: [] for name in parts}

    def recorder(name: str) -> Any:
        def record(_submodule: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            calls[name].append(Call(args, kwargs, tuple(output) if isinstance(output, list) else output))

        return record

    hooks = [submodule.register_forward_hook(recorder(name), with_kwargs=True) for name, submodule in parts.items()]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def varying(first: Sequence[int], second: Sequence[int]) -> list[int]:
    """The axes in which two shapes of the same rank differ."""
    return [axis for axis, (a, b) in enumerate(zip(first, second, strict=True)) if a != b]


@dataclass(frozen=True)
class Reads:
    """The arguments of a call from which the number of tokens, or their positions, are read.

    Attributes:
        counts: Python integers: the number of tokens, or of queries and of keys.
        ids: int64 positions, [T] or [B, T].
        axes: tensors of floats (or ids of tokens), with their token axes.
        at_end: the queries are the last of the keys.
    """

    counts: tuple[Key, ...] = ()
    ids: Key | None = None
    axes: tuple[tuple[Key, tuple[int, ...]], ...] = ()
    at_end: bool = False

    @staticmethod
    def of(first: Call, second: Call) -> "Reads":
        """Compares the same call at two lengths."""
        counts, ids, axes = [], None, []
        later = second.arguments
        for key, value in first.arguments.items():
            other = later.get(key)
            if isinstance(value, Tensor) and isinstance(other, Tensor) and value.ndim == other.ndim:
                if _counted(value) and _counted(other):
                    ids = key
                elif differing := varying(value.shape, other.shape):
                    axes.append((key, tuple(differing)))
            elif type(value) is int and type(other) is int and value != other:
                counts.append(key)
        return Reads(tuple(counts), ids, tuple(axes))

    @property
    def known(self) -> bool:
        return bool(self.axes or self.ids is not None or 1 <= len(self.counts) <= 2)

    def lengths(self, arguments: Arguments) -> tuple[int, int]:
        """The numbers of queries and keys; equal where a call has tokens alone."""
        if self.counts:
            return arguments[self.counts[0]], arguments[self.counts[-1]]
        if self.ids is not None:
            count = arguments[self.ids].shape[-1]
            return count, count
        key, axes = self.axes[0]
        shape = arguments[key].shape
        return shape[axes[0]], shape[axes[-1]]

    def positions(self, arguments: Arguments, device: torch.device) -> Positions:
        """Returns the positions of the tokens in a call."""
        if self.ids is not None:
            ids_BT = arguments[self.ids]
            return Positions(ids_BT if ids_BT.ndim == 2 else ids_BT[None], torch.arange(ids_BT.shape[-1]))
        return Positions.counted(self.lengths(arguments)[0], device)

    def pairs(self, arguments: Arguments, device: torch.device) -> tuple[Positions, Positions]:
        """The positions of queries and of keys."""
        queries, keys = self.lengths(arguments)
        slots_S = torch.arange(keys, device=device)
        slots_T = torch.arange(queries, device=device) + (keys - queries if self.at_end else 0)
        return Positions(slots_T[None], slots_T), Positions(slots_S[None], slots_S)


def _counted(x: Tensor) -> bool:
    """Whether every row is a range 0, 1, 2 ..."""
    if x.is_floating_point() or x.ndim not in (1, 2):
        return False
    return bool((x == torch.arange(x.shape[-1], device=x.device)).all())
