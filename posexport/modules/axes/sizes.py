"""Sizes to trace and to prove a module at, within what its axes take: least sizes, steps, largest sizes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from posexport.modules.axes.classify import Varying
from posexport.sizes import multiple
from posexport.spec import BATCH, ENCODER_SEQUENCE, SEQUENCE

#: axes whose sizes the grid knows without being told
STANDARD = (BATCH, SEQUENCE, ENCODER_SEQUENCE)
#: what a size is made of where an axis takes any: several strides of most convolutions
_UNIT = 8
#: multiples of the unit to trace at: the first axis, the second ...
_TRACED = 4
#: sizes to prove at, in units: of the first axis, of the second ...; a half where no step forbids it
_PROVEN = ((0, 0), (1, 3), (2.5, 4.5), (3, 4), (5, 3), (7, 6))


@dataclass(frozen=True, kw_only=True)
class Range:
    """What an axis takes: multiples of ``step`` from ``least`` to ``most``.

    ``example``: a size of the user's. ``unit``: what sizes are made of, where nothing else is known.
    """

    example: int
    least: int
    step: int
    most: int | None
    unit: int = _UNIT

    @staticmethod
    def of(axis: str, group: Varying) -> "Range":
        """What was found by trying; a second batch is as small as the first."""
        unit = 1 if axis.endswith(BATCH) else _UNIT
        return Range(
            example=group.size, least=group.least, step=group.step, most=group.size if group.ends else None, unit=unit
        )

    def at(self, units: float) -> int:
        """The size of about so many units: of what reaches from one token to the next, or more."""
        unit = multiple(max(self.least, self.unit), self.step)
        return self.inside(int(units * unit))

    def inside(self, size: int) -> int:
        """The nearest size that is taken."""
        size = multiple(max(size, self.least), self.step)
        return size if self.most is None else min(size, self.most)


def trace_sizes(ranges: Mapping[str, Range]) -> dict[str, int]:
    """Sizes that differ, some tokens each, and not the example's, for which a module may have a way of its own."""
    return {
        axis: each.at(units) if each.at(units) != each.example else each.at(units + 2)
        for (axis, each), units in zip(ranges.items(), count(_TRACED))
    }


def second_sizes(ranges: Mapping[str, Range], first: Mapping[str, int]) -> dict[str, int]:
    """Sizes that differ from the ``first``, by enough that there are more tokens."""
    found = {}
    for axis, each in ranges.items():
        larger = each.inside(max(each.example, 2 * first[axis]))
        found[axis] = larger if larger != first[axis] else each.least
    return found


def proof_sizes(ranges: Mapping[str, Range]) -> list[dict[str, int]]:
    """The least of all, the example's, and others between and beyond."""
    if not ranges:
        return []
    sizes = [
        {axis: each.at(units[place % 2]) for place, (axis, each) in enumerate(ranges.items())} for units in _PROVEN
    ]
    sizes.append({axis: each.inside(each.example) for axis, each in ranges.items()})
    sizes.append({axis: each.inside(each.least + each.step) for axis, each in ranges.items()})
    return [size for index, size in enumerate(sizes) if size not in sizes[:index]]


def standard_sizes(groups: Mapping[str, Varying], sizes: Mapping[str, int]) -> dict[str, int]:
    """Of ``sizes``, those of batch and sequences that must be others, because of least sizes and steps."""
    ranges = {axis: Range.of(axis, group) for axis, group in groups.items() if axis in STANDARD and axis != BATCH}
    # at the least size there may be one token of what is read, such as a patch of a series, and one is no dynamic axis
    others = {axis: each.inside(max(sizes[axis], each.at(2) if each.least > 1 else 1)) for axis, each in ranges.items()}
    return {axis: size for axis, size in others.items() if size != sizes[axis]}


def others(axes: Sequence[str], groups: Mapping[str, Varying]) -> dict[str, Range]:
    """What is known of the named axes that are neither batch nor sequence."""
    return {axis: Range.of(axis, groups[axis]) for axis in axes if axis not in STANDARD and axis in groups}
