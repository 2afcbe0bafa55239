"""Sizes to trace and to prove a module at, within what its axes accept; and the length contract of those axes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

import msgspec

from posexport.base.sizes import multiple
from posexport.base.spec import BATCH, ENCODER_SEQUENCE, SEQUENCE, LengthContract
from posexport.errors import PosexportError
from posexport.modules.axes.classified import Varying

Sizes = dict[str, int]
#: axes that the proof's grid has sizes for already
STANDARD = (BATCH, SEQUENCE, ENCODER_SEQUENCE)
#: the unit of sizes where an axis accepts any: several strides of most convolutions
_UNIT = 8
#: from which unit on half as many are taken: an image of 7 by 6 such units takes minutes
_COARSE = 64
#: units to trace the first axis at; the second is traced at one more, and so on
_TRACED = 4
#: units to prove at: of the first axis, of the second ...; a half where no step forbids it
_PROVEN = ((0, 0), (1, 3), (2.5, 4.5), (3, 4), (5, 3), (7, 6))
#: by how much the two sizes of a batch or a sequence differ, where it has no step
_FURTHER = 4
#: the rows of the second of two calls, and how many times as large as the first an image is there at least
_FEW_ROWS, _LEAST_TIMES = 2, 1.25
#: times a sequence that shows which axes of outputs end
_FAR = 4


@dataclass(frozen=True, kw_only=True)
class Range:
    """The sizes that an axis accepts: multiples of ``step`` from ``least`` to ``most``.

    Attributes:
        example: the size in the user's example.
        least: the smallest size.
        step: all sizes are multiples of it.
        most: the largest size; None: no limit is known.
        unit: what sizes to trace and prove at are made of, where nothing else is known.
    """

    example: int
    least: int
    step: int
    most: int | None
    unit: int = _UNIT

    @staticmethod
    def of(axis: str, group: Varying) -> "Range":
        """The range of axes that were classified; a second batch is as small as the first."""
        unit = 1 if axis.endswith(BATCH) else _UNIT
        return Range(
            example=group.size, least=group.least, step=group.step, most=group.size if group.ends else None, unit=unit
        )

    def at(self, units: float) -> int:
        """The size of about this many units, each of at least the least size."""
        unit = multiple(max(self.least, self.unit), self.step)
        if unit >= _COARSE:
            units = math.ceil(units / 2)
        return self.inside(int(units * unit))

    def inside(self, size: int) -> int:
        """The accepted size that is nearest to ``size``."""
        size = multiple(max(size, self.least), self.step)
        return size if self.most is None else min(size, self.most)


def narrowed(
    groups: Mapping[str, Varying], sizes: Sizes, steps: Mapping[str, int], smallest: Mapping[str, int]
) -> dict[str, Varying]:
    """The groups with sizes that are multiples of ``steps`` and at least ``smallest``.

    ``sizes``: of axes that have no group.

    Raises:
        PosexportError: an axis is not among them: calls of an earlier copy of the module found it.
    """
    if lost := [axis for axis in {**steps, **smallest} if axis not in sizes]:
        raise PosexportError(
            f"axis {lost[0]} varied when the module was made before, and does not now (found: {', '.join(sizes)}): its "
            "weights differ each time; call torch.manual_seed where it is made, or name the axes with axes="
        )
    stepped = dict(groups)
    for axis in {**steps, **smallest}:
        group = groups.get(axis) or Varying(members=(), size=sizes[axis])
        step = math.lcm(group.step, steps.get(axis, 1))
        least = multiple(max(group.least, smallest.get(axis, 1)), step)
        size = max(multiple(group.size, step), least)
        stepped[axis] = replace(group, size=size, least=least, step=step)
    return stepped


def other_ranges(axes: Sequence[str], groups: Mapping[str, Varying]) -> dict[str, Range]:
    """The ranges of the named axes that are neither batch nor sequence."""
    return {axis: Range.of(axis, groups[axis]) for axis in axes if axis not in STANDARD and axis in groups}


def trace_sizes(ranges: Mapping[str, Range]) -> Sizes:
    """Sizes that differ, of some tokens each, and not the example's, which a module may treat as a special case."""
    return {
        axis: extent.at(units) if extent.at(units) != extent.example else extent.at(units + 2)
        for (axis, extent), units in zip(ranges.items(), count(_TRACED))
    }


def standard_sizes(groups: Mapping[str, Varying], sizes: Mapping[str, int]) -> Sizes:
    """The sizes of sequences that must differ from ``sizes``, because of least sizes and steps."""
    ranges = {axis: Range.of(axis, group) for axis, group in groups.items() if axis in STANDARD and axis != BATCH}
    # the least size may make one token, as a patch of a series, and a dynamic axis must not have size 1, or one step
    accepted = {
        axis: extent.inside(max(sizes[axis], extent.at(2) if extent.least > 1 else 1, 2 * extent.step - 1))
        for axis, extent in ranges.items()
    }
    return {axis: size for axis, size in accepted.items() if size != sizes[axis]}


def two_sizes(base: Sizes, limits: LengthContract, ranges: Mapping[str, Range], times: float) -> tuple[Sizes, Sizes]:
    """Two different sizes of every axis, within the limits, so far apart that they make different numbers of tokens.

    ``times``: how many times as large as ``base`` all ``ranges`` together may be.
    """
    steps, least = limits.size_steps, {SEQUENCE: limits.min_length, **limits.min_sizes}
    first, second = dict(base), dict(base)
    for axis in base:
        second[axis] += multiple(max(_FURTHER, least.get(axis, 1)), steps.get(axis, 1))
    if first.get(BATCH, 1) > _FEW_ROWS and BATCH not in steps:
        second[BATCH] = _FEW_ROWS  # calls at both sizes of an image are large enough
    # where a limit is near, the first is made smaller
    for axis in limits.limited_axes if limits.max_length is not None else []:
        if axis in second:
            second[axis] = min(second[axis], limits.max_length or 1)
            first[axis] = min(first[axis], max(1, second[axis] - steps.get(axis, 1)))
    # axes that are neither batch nor sequence
    for axis, extent in ranges.items():
        largest = int(first[axis] * max(_LEAST_TIMES, times ** (1 / len(ranges))))
        larger = extent.inside(min(max(extent.example, 2 * first[axis]), largest))
        second[axis] = larger if larger != first[axis] else extent.least
    return first, second


def further_sizes(first: Sizes, second: Sizes, limits: LengthContract) -> list[Sizes]:
    """Sizes near the first ones, the least ones, and sequences far longer than the second ones, of the fewest rows."""
    steps, least = limits.size_steps, {SEQUENCE: limits.min_length, **limits.min_sizes}
    near = {axis: min(size + steps.get(axis, 1), second[axis]) for axis, size in first.items()}
    smallest = {axis: multiple(least.get(axis, 1), steps.get(axis, 1)) for axis in first}
    far = {axis: _FAR * size if axis in (SEQUENCE, ENCODER_SEQUENCE) else size for axis, size in second.items()}
    far |= {axis: size for axis, size in smallest.items() if axis == BATCH}
    if limits.max_length is not None:
        far |= {axis: min(far[axis], limits.max_length) for axis in limits.limited_axes if axis in far}
    return [near, smallest, far]


def proof_sizes(ranges: Mapping[str, Range]) -> list[Sizes]:
    """Sizes to prove axes at that are neither batch nor sequence: the least, the example's, and others."""
    if not ranges:
        return []
    sizes = [
        {axis: extent.at(units[place % 2]) for place, (axis, extent) in enumerate(ranges.items())} for units in _PROVEN
    ]
    sizes.append({axis: extent.inside(extent.example) for axis, extent in ranges.items()})
    sizes.append({axis: extent.inside(extent.least + extent.step) for axis, extent in ranges.items()})
    return [size for index, size in enumerate(sizes) if size not in sizes[:index]]


def with_ranges(limits: LengthContract, groups: Mapping[str, Varying], ranges: Mapping[str, Range]) -> LengthContract:
    """The contract with the least sizes and the steps of all axes, and the largest sizes of ``ranges``."""
    # a step says already that less than one step is refused
    least = {axis: group.least for axis, group in groups.items() if group.least > group.step and axis != BATCH}
    return msgspec.structs.replace(
        limits,
        min_length=max(limits.min_length, least.pop(SEQUENCE, 1)),
        min_sizes=least,
        max_sizes={axis: extent.most for axis, extent in ranges.items() if extent.most is not None},
        size_steps={axis: group.step for axis, group in groups.items() if group.step > 1},
    )
