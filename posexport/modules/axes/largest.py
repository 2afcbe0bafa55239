"""Searches the largest size of each axis that a user's module accepts: doubled, then bisected.

Axes of tokens are searched up to `LONGEST`, samples by the tokens that they make, other axes up to a few times the
example. A call that is expected to need more than `_MEMORY` or `CALL` seconds is made of shapes alone (`accepts`);
where these do not show that a size is accepted, no larger one is tried, but of a module that is too large to be copied
while the call needs at most half of the free memory.
"""

import contextlib
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from posexport.base.spec import BATCH, SAMPLES, LengthContract
from posexport.base.system.machine import available
from posexport.errors import PosexportError
from posexport.modules.axes.memory import Made, times_larger
from posexport.modules.axes.sizes import Range
from posexport.modules.drawn_calls import DrawnCalls, NoRoomError, Sizes

#: the longest input that is tried: one more than a table of 8192 positions
LONGEST = 8193
#: seconds: of one call, as expected from the calls before; of a whole search; of a call that is cheap enough to prove
CALL, SEARCH, CHEAP = 3.0, 20.0, 0.25
#: bytes that a call may need; the part of the free memory that one of a module may that is too large to be copied
_MEMORY, _SHARE = 3 << 28, 0.5
#: memory grows with this power of the size at most, as of triples of atoms
_MOST_POWER = 3.0
#: float32 arrays of attention scores in memory together, if the module has as many heads as most have
_SCORES, _HEADS = 3, 16
#: a known limit up to here is tried directly; a longer one is approached, as far as memory and time allow
_DIRECT = 1024
#: times the example's size, up to which other axes than batch, tokens and samples are searched
_FURTHER = 4


@dataclass
class Largest:
    """The result of a search.

    Attributes:
        size: the largest size that was accepted.
        reason: why the next one is not; empty where there is no limit.
        cheap: the sizes that were accepted quickly, ascending.
    """

    size: int
    reason: str = ""
    cheap: list[int] = field(default_factory=list)

    @property
    def limit(self) -> int | None:
        """The largest size that the module accepts; None where there is no limit."""
        return self.size if self.reason else None


def search(
    failure: Callable[[int], str],
    start: int,
    longest: int,
    accepts: Callable[[int], bool] = lambda _: False,
    most: float = _MEMORY,
) -> Largest:
    """Calls ``failure`` with sizes up to ``longest``; it returns why a size is refused, or an empty string.

    ``start`` is accepted. ``accepts``: whether a size is, as far as that shows in little memory. ``most``: bytes that
    a call may need where that does not show.
    """
    largest = Largest(start)
    refused: int | None = None
    costs, began = _Costs(start), time.monotonic()
    while time.monotonic() - began < SEARCH:
        low, last = largest.size, False
        size = _next(low, refused, longest)
        if size in (low, refused) or size > longest:
            break
        if not costs.fits(size, _MEMORY):
            if accepts(size):
                largest.size = size
                continue
            if refused is None and not costs.fits(size, most):  # tables end at powers of two more often than elsewhere
                size, last = low + 1, True
                if accepts(size):
                    break
        with costs.of(size):
            reason = failure(size)
        if reason:
            refused, largest.reason = size, reason
        elif last:
            break
        else:
            largest.size = size
            if costs.seconds < CHEAP:
                largest.cheap.append(size)
    return largest


def _next(low: int, refused: int | None, longest: int) -> int:
    """The next power of two, or the middle between ``low``, which is accepted, and ``refused``."""
    if refused is not None:
        return (low + refused) // 2
    return min(1 << low.bit_length(), longest - 1) if low < longest - 1 else longest


class _Costs:
    """Seconds and bytes of the last call, which are assumed to grow with the square of the size, or as they did."""

    def __init__(self, size: int) -> None:
        self.size, self.seconds, self.bytes, self.power = size, 0.0, 4 * _SCORES * _HEADS * size**2, 2.0

    def of(self, size: int) -> "_Costs":
        """Measures the call in a ``with`` block."""
        self._measured = size
        return self

    def __enter__(self) -> None:
        # of this thread: other processes change how long a call takes
        self._before = time.thread_time(), _peak()
        self._made = Made()
        self._made.__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *raised: Any) -> None:
        self._made.__exit__(*raised)  # type: ignore[no-untyped-call]
        before, self.size = (self.size, self.bytes), self._measured
        self.seconds = time.thread_time() - self._before[0]
        # the process may have needed more before
        self.bytes = max(_peak() - self._before[1], self._made.bytes, 1)
        if self.size > before[0]:
            power = math.log(self.bytes / before[1]) / math.log(self.size / before[0])
            self.power = min(max(power, 2.0), _MOST_POWER)

    def fits(self, size: int, memory: float) -> bool:
        """Whether a call of this size is expected to stay within the limits of time and memory."""
        grows = size / self.size
        need = self.bytes * grows**self.power
        return self.seconds * grows**2 <= CALL and need <= min(memory, _SHARE * available())


def _peak() -> int:
    """The largest number of bytes that this process has had in memory."""
    with contextlib.suppress(ImportError):  # Windows has none
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else 1024 * peak
    return 0


def _most(calls: DrawnCalls) -> float:
    """The bytes of a call whose shapes alone do not tell; those of a large module never do."""
    return _MEMORY if calls.small else _SHARE * available()


def largest_of_tokens(calls: DrawnCalls, base: Sizes, axis: str, limits: LengthContract, step: int) -> Largest:
    """The longest input in tokens of ``axis``, which varies by ``step``; other axes have the sizes of ``base``."""
    known = limits.max_length if axis in limits.limited_axes else None
    alone = {**base, BATCH: 1} if BATCH in base else base

    def failure(length: int) -> str:
        return calls.failure({**alone, axis: length})

    # an encoding of posexport has a known limit; another table of the module may be shorter
    if known is not None and known <= base[axis]:
        return Largest(known)
    if base[axis] > step:
        with contextlib.suppress(PosexportError):  # the module may refuse a shorter input
            calls.follow(axis, alone, {**alone, axis: base[axis] - step})
    try:
        if known is not None and known <= _DIRECT and not failure(known):
            return Largest(known)
        largest = search(
            lambda steps: failure(steps * step),
            base[axis] // step,
            (known or LONGEST) // step,
            lambda steps: calls.accepts({**alone, axis: steps * step}),
            _most(calls),
        )
        if largest.reason:
            largest = _without_padding(calls, alone, axis, step, largest)
        return Largest(largest.size * step, largest.reason, [steps * step for steps in largest.cheap])
    except NoRoomError:
        return Largest(base[axis])


def _without_padding(calls: DrawnCalls, base: Sizes, axis: str, step: int, largest: Largest) -> Largest:
    """The limit of inputs without padding: a module may count positions by ids that are not the padding id."""
    for back in (1, 2):  # one of two ids is not the padding id

        def failure(steps: int, back: int = back) -> str:
            return calls.failure({**base, axis: steps * step}, back)

        if failure(largest.size):

            def accepts(steps: int, back: int = back) -> bool:
                return calls.accepts({**base, axis: steps * step}, back)

            shorter = search(failure, base[axis] // step, largest.size, accepts, _most(calls))
            largest = Largest(shorter.size, shorter.reason, shorter.cheap)
    return largest


def largest_of(calls: DrawnCalls, base: Sizes, axis: str, extent: Range, per_token: float) -> Largest:
    """The largest size of another axis than batch and tokens."""
    if extent.most is not None:
        return Largest(extent.most, f"the module does not take {extent.most + extent.step}")
    alone = {**base, BATCH: 1} if BATCH in base else base

    def failure(size: int) -> str:
        return calls.failure({**alone, axis: size})

    try:
        if axis.endswith(SAMPLES):
            return _largest_of_samples(calls, alone, axis, extent, per_token)
        # the end of a table of positions; few steps, as images grow by the square
        furthest = _FURTHER * max(extent.example, base[axis])
        furthest = max(base[axis], min(furthest, int(base[axis] * times_larger(calls.run, alone))))
        largest = search(lambda steps: failure(steps * extent.step), base[axis] // extent.step, furthest // extent.step)
        return Largest(largest.size * extent.step, largest.reason)
    except NoRoomError:
        return Largest(base[axis])


def _largest_of_samples(calls: DrawnCalls, base: Sizes, axis: str, extent: Range, per_token: float) -> Largest:
    """The most samples that are accepted: by tokens first, which is how tables end, then by samples."""

    def samples(tokens: int) -> int:
        return extent.inside(int(tokens * per_token))

    def failure(size: int) -> str:
        return calls.failure({**base, axis: size})

    largest = search(
        lambda tokens: failure(samples(tokens)),
        max(1, int(base[axis] / per_token)),
        LONGEST,
        lambda tokens: calls.accepts({**base, axis: samples(tokens)}),
        _most(calls),
    )
    low, high = samples(largest.size), samples(largest.size + 1)
    while largest.reason and high - low > extent.step:
        middle = extent.inside((low + high) // 2)
        if middle >= high:
            break
        low, high = (low, middle) if failure(middle) else (middle, high)
    return Largest(low, largest.reason)
