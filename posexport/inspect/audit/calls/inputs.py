"""Inputs of calls that share their content: the same row alone, in a batch, padded, or cut into two calls.

A row's ids and values depend on the row's seed and the place only, never on the batch, the width or the padding.

Shape letters: B rows, T tokens of a call with padding.
"""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from posexport.inspect.audit.calls.frames import Arrays
from posexport.inspect.audit.calls.ports import Axis, Port

Side = Literal["right", "left"]
#: tokens that rows have at most, and sizes of what does not vary
LONGEST, _ENCODER, _OTHER = 64, 9, 2
#: tables smaller than this have no special ids at their start
_SPECIAL = 5


@dataclass(frozen=True)
class Call:
    """A call of a graph.

    Attributes:
        rows: of each row the seed of its content, and its tokens up to the end of this call.
        width: places for tokens up to the end of this call; 0: as many as the longest row has.
        side: where shorter rows are padded.
        start: tokens before this call, which are in the cache.
        padding: a seed of the content of padded places; 0: the id that the graph compares ids with, or 0.
        edge: the same of the place that is farthest from the row.
        sizes: of axes of pictures and sound.
    """

    rows: tuple[tuple[int, int], ...]
    width: int = 0
    side: Side = "right"
    start: int = 0
    padding: int = 0
    edge: int = 0
    sizes: tuple[tuple[str, int], ...] = ()

    @property
    def total(self) -> int:
        return self.width or max(tokens for _, tokens in self.rows)

    @property
    def real(self) -> NDArray[np.bool_]:
        """Places of real tokens up to the end of this call, [B, start + T]."""
        places, counts = np.arange(self.total)[None], np.array([tokens for _, tokens in self.rows])[:, None]
        real: NDArray[np.bool_] = places < counts if self.side == "right" else places >= self.total - counts
        return real

    def __str__(self) -> str:
        """Returns batch, tokens and padding, for a sentence."""
        lengths = sorted({tokens for _, tokens in self.rows})
        text = f"batch {len(self.rows)}, {'/'.join(map(str, lengths))} tokens"
        return text if self.total == lengths[-1] else f"{text} padded on the {self.side} to {self.total}"


@dataclass(frozen=True)
class Inputs:
    """Inputs of a graph, as arrays for a call.

    Attributes:
        ports: all of them.
        sizes: of axes of pictures and sound, if a call does not say.
        longest: tokens that a row has at most. A shorter row begins as a longer one does.
    """

    ports: Sequence[Port]
    sizes: Mapping[str, int] = field(default_factory=lambda: {"height": 64, "width": 96, "samples": 1237})
    longest: int = LONGEST

    def has(self, axis: Axis) -> bool:
        return any(axis in port.axes for port in self.ports)

    def of_kind(self, kind: str) -> list[Port]:
        return [port for port in self.ports if port.kind == kind]

    @property
    def mask(self) -> Port | None:
        """The padding mask of the tokens."""
        return next(
            (p for p in self.of_kind("mask") if p.axes[1] in ("tokens", "total") and p.axes[0] == "batch"), None
        )

    @property
    def past(self) -> list[Port]:
        """Caches and states that a call continues; keys of an encoder stay as they are."""
        return [port for port in self.of_kind("past") if "encoder" not in port.axes]

    def with_sizes(self, **sizes: int) -> "Inputs":
        return replace(self, sizes={**self.sizes, **sizes})

    def feeds(self, call: Call) -> Arrays:
        """An array for every input; caches are empty."""
        return {port.name: np.asarray(self._array(port, call)).astype(port.dtype) for port in self.ports}

    def size(self, axis: Axis, call: Call) -> int:
        """How large an axis is."""
        if isinstance(axis, int):
            return axis
        known = {"batch": len(call.rows), "tokens": call.total - call.start, "past": call.start, "total": call.total}
        return {
            "encoder": _ENCODER,
            "other": _OTHER,
            "capacity": self.longest,
            **self.sizes,
            **dict(call.sizes),
            **known,
        }[axis]

    def _array(self, port: Port, call: Call) -> NDArray[Any]:
        shape = [self.size(axis, call) for axis in port.axes]
        if port.kind == "past":
            return self._states(port, call, shape)
        if port.kind == "mask":
            real = call.real[:, call.start :] if port.axes[1] == "tokens" else call.real
            fits = port.axes[0] == "batch" and shape[1] == real.shape[1]
            return real if fits else np.ones(shape)
        if port.kind == "ones":
            return np.ones(shape)
        if port.kind == "branch":
            return np.full(shape, call.start > 0)
        if port.kind == "zero":
            return np.zeros(shape)
        if port.kind == "positions":
            return self._positions(port, call, shape)
        return self._content(port, call, shape)

    def _states(self, port: Port, call: Call, shape: Sequence[int]) -> NDArray[Any]:
        """An empty cache; keys and values of an encoder's tokens are values."""
        if "encoder" not in port.axes:
            return np.zeros(shape)
        return np.stack([_rng(port, seed).standard_normal(shape[1:]) for seed, _ in call.rows])

    def _positions(self, port: Port, call: Call, shape: Sequence[int]) -> NDArray[Any]:
        """Counted from the mask, as transformers' ``generate`` does; by place if rows share them."""
        counted = np.maximum(call.real.cumsum(1) - 1, 0)[:, call.start :]
        if "batch" not in port.axes:
            counted = np.arange(call.start, call.total)
        return np.broadcast_to(counted if shape[-1:] == [counted.shape[-1]] else 0, shape)

    def _content(self, port: Port, call: Call, shape: Sequence[int]) -> NDArray[Any]:
        """Ids and values: each row's, and the content of padded places."""
        if "batch" not in port.axes:
            # what rows share has one content, unless no input has rows
            seed = 0 if self.has("batch") else call.rows[0][0]
            return self._values(port, shape, _rng(port, seed))
        batch = port.axes.index("batch")
        inner = [size for place, size in enumerate(shape) if place != batch]
        axes = [axis for axis in port.axes if axis != "batch"]
        if "tokens" not in axes:
            return np.stack([self._values(port, inner, _rng(port, seed)) for seed, _ in call.rows], batch)
        place = axes.index("tokens")
        longest = [self.longest if axis == "tokens" else size for axis, size in zip(axes, inner, strict=True)]
        moved = [longest[place], *longest[:place], *longest[place + 1 :]]  # tokens first: a longer row begins the same
        rows = []
        for (seed, tokens), real in zip(call.rows, call.real, strict=True):
            array = self._padding(port, [call.total, *moved[1:]], call.padding)
            edge = -1 if call.side == "right" else 0
            array[edge] = self._padding(port, moved, call.edge)[0]
            array[real] = self._values(port, moved, _rng(port, seed))[:tokens]
            rows.append(np.moveaxis(array[call.start :], 0, place))
        return np.stack(rows, batch)

    def _padding(self, port: Port, shape: Sequence[int], seed: int) -> NDArray[Any]:
        if seed and not port.is_read:
            return self._values(port, shape, _rng(port, -seed))
        identifier = next((number for number in port.compared if 0 <= number < port.rows), 0)
        return np.full(
            shape, identifier if port.kind == "ids" else 0, np.float64 if port.kind == "values" else np.int64
        )

    @staticmethod
    def _values(port: Port, shape: Sequence[int], rng: np.random.Generator) -> NDArray[Any]:
        if port.kind == "values":
            return rng.standard_normal(shape)
        if port.kind == "corners":
            # x0, y0, x1, y1 with x0 <= x1 and y0 <= y1
            corners = rng.integers(0, max(2, port.rows // 3), shape)
            low, high = np.sort((corners[..., :2], corners[..., 2:]), axis=0)
            return np.concatenate((low, high), -1)
        first = _SPECIAL if port.rows > 2 * _SPECIAL else 0
        allowed = np.setdiff1d(np.arange(first, port.rows), port.compared) if port.compared else None
        if allowed is None or not allowed.size:
            return rng.integers(first, max(port.rows, first + 1), shape)
        chosen: NDArray[Any] = allowed[rng.integers(0, allowed.size, shape)]
        return chosen


def _rng(port: Port, seed: int) -> np.random.Generator:
    """Content depends on the input's name and a seed."""
    return np.random.default_rng([zlib.crc32(port.name.encode()), abs(seed), int(seed < 0)])
