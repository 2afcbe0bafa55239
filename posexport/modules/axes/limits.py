"""What a contract says of axes: least sizes, steps, largest sizes; and two sizes to look at outputs at."""

from collections.abc import Callable, Mapping

import msgspec

from posexport.modules.axes.classify import Varying
from posexport.modules.axes.sizes import Range, second_sizes
from posexport.modules.length_search import Found, search
from posexport.sizes import multiple
from posexport.spec import BATCH, SEQUENCE, LengthContract

Sizes = dict[str, int]
#: by how much the two sizes of a batch or a sequence differ, where it has no step
_FURTHER = 4


def search_samples(attempt: Callable[[int], str], start: int, each: Range, per_token: float) -> Found:
    """The most samples that are taken, counted in tokens first: these are what a table ends by."""

    def samples(tokens: int) -> int:
        return each.inside(int(tokens * per_token))

    found = search(lambda tokens: attempt(samples(tokens)), max(1, int(start / per_token)))
    low, high = samples(found.longest), samples(found.longest + 1)
    while found.reason and high - low > each.step:
        middle = each.inside((low + high) // 2)
        if middle >= high:
            break
        low, high = (low, middle) if attempt(middle) else (middle, high)
    return Found(low, found.reason)


def with_ranges(limits: LengthContract, groups: Mapping[str, Varying], ranges: Mapping[str, Range]) -> LengthContract:
    """The contract with the least sizes and the steps of all axes, and the largest sizes of ``ranges``."""
    # a step says already that less than one is refused
    least = {axis: group.least for axis, group in groups.items() if group.least > group.step and axis != BATCH}
    return msgspec.structs.replace(
        limits,
        min_length=max(limits.min_length, least.pop(SEQUENCE, 1)),
        min_sizes=least,
        max_sizes={axis: each.most for axis, each in ranges.items() if each.most is not None},
        size_steps={axis: group.step for axis, group in groups.items() if group.step > 1},
    )


def two_sizes(base: Sizes, limits: LengthContract, ranges: Mapping[str, Range]) -> tuple[Sizes, Sizes]:
    """Two different sizes of every axis, within the limits; the least size makes a token more where a stride does."""
    steps, least = limits.size_steps, {SEQUENCE: limits.min_length, **limits.min_sizes}
    first, second = dict(base), dict(base)
    for axis, step in ((axis, steps.get(axis, 1)) for axis in base):
        second[axis] += multiple(max(_FURTHER, least.get(axis, 1)), step)
    for axis in limits.limited_axes if limits.max_length is not None else []:
        if axis in second:
            second[axis] = min(second[axis], limits.max_length or 1)
            first[axis] = min(first[axis], max(1, second[axis] - steps.get(axis, 1)))
    return first, {**second, **second_sizes(ranges, first)}
