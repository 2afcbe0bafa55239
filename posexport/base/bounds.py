"""Bounds of input sizes that a graph checks, with their messages. Imports neither torch nor onnx."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from posexport.base.spec import ENCODER_SEQUENCE, HEIGHT, SAMPLES, SEQUENCE, WIDTH, LengthContract

_NAMES = {SEQUENCE: "input", ENCODER_SEQUENCE: "encoder input", HEIGHT: "image height", WIDTH: "image width"}
_NAMES |= {SAMPLES: "sound"}
_UNITS = {HEIGHT: "pixels", WIDTH: "pixels", SAMPLES: "samples"}

#: messages of the guard that belong to no `Bound`
MASK_MISFIT = "attention_mask is not over past and new tokens"
CACHE_FULL = "attention_mask is longer than the cache has places, or shorter than input_ids"
POSITION_BEYOND = "position_ids beyond"


class Bound(NamedTuple):
    """A bound on the size of an axis: its maximum, its minimum, or a number that it is a multiple of."""

    axis: str
    number: int
    kind: Literal["maximum", "minimum", "multiple"] = "maximum"

    @property
    def message(self) -> str:
        what = _NAMES.get(self.axis, self.axis.removesuffix("_sequence_length") + " input")
        unit = _UNITS.get(self.axis, "positions")
        if self.kind == "multiple":
            return f"{what} not a multiple of {self.number} {unit}"
        how = "shorter" if self.kind == "minimum" else "longer"
        return f"{what} {how} than {self.number} {unit}"

    def broken(self, size: int) -> bool:
        if self.kind == "multiple":
            return size % self.number != 0
        return size < self.number if self.kind == "minimum" else size > self.number


def bounds_of(limits: LengthContract) -> Sequence[Bound]:
    """The bounds that the graph of a model with these limits checks."""
    bounds = [] if limits.max_length is None else [Bound(axis, limits.max_length) for axis in limits.limited_axes]
    if limits.min_length > 1:
        bounds.append(Bound(SEQUENCE, limits.min_length, "minimum"))
    bounds += [Bound(axis, size, "minimum") for axis, size in limits.min_sizes.items() if size > 1]
    bounds += [Bound(axis, size) for axis, size in limits.max_sizes.items()]
    return bounds + [Bound(axis, step, "multiple") for axis, step in limits.size_steps.items()]
