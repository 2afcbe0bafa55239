"""The sizes that a graph refuses, and what it says then. Imports neither torch nor onnx."""

from collections.abc import Sequence
from typing import NamedTuple

from posexport.spec import ENCODER_SEQUENCE, HEIGHT, SAMPLES, SEQUENCE, WIDTH, LengthContract

_NAMES = {SEQUENCE: "input", ENCODER_SEQUENCE: "encoder input", HEIGHT: "image height", WIDTH: "image width"}
_NAMES |= {SAMPLES: "sound"}
_UNITS = {HEIGHT: "pixels", WIDTH: "pixels", SAMPLES: "samples"}

#: what the guard says beside `Bound`s
MASK_MISFIT = "attention_mask is not over past and new tokens"
CACHE_FULL = "attention_mask is longer than the cache has places, or shorter than input_ids"
POSITION_BEYOND = "position_ids beyond"


class Bound(NamedTuple):
    """The most places that an axis may have; with ``least`` the fewest, with ``step`` what they are a multiple of."""

    axis: str
    number: int
    least: bool = False
    step: bool = False

    @property
    def message(self) -> str:
        what = _NAMES.get(self.axis, self.axis.removesuffix("_sequence_length") + " input")
        unit = _UNITS.get(self.axis, "positions")
        if self.step:
            return f"{what} not a multiple of {self.number} {unit}"
        how = "shorter" if self.least else "longer"
        return f"{what} {how} than {self.number} {unit}"

    def broken(self, size: int) -> bool:
        if self.step:
            return size % self.number != 0
        return size < self.number if self.least else size > self.number


def bounds_of(limits: LengthContract) -> Sequence[Bound]:
    """What the graph of a model with these limits must refuse."""
    bounds = [] if limits.max_length is None else [Bound(axis, limits.max_length) for axis in limits.limited_axes]
    if limits.min_length > 1:
        bounds.append(Bound(SEQUENCE, limits.min_length, least=True))
    bounds += [Bound(axis, least, least=True) for axis, least in limits.min_sizes.items() if least > 1]
    bounds += [Bound(axis, most) for axis, most in limits.max_sizes.items()]
    return bounds + [Bound(axis, step, step=True) for axis, step in limits.size_steps.items()]
