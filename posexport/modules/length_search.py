"""The longest input that a user's module takes, found by trying: the length is doubled, then bisected."""

import contextlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from posexport.system.machine import available

#: the longest input that is tried: one more than a table of 8192 positions
LONGEST = 8193
#: seconds: of one call, by the calls before it; of the whole search; of a call that is cheap enough for the proof
CALL, SEARCH, CHEAP = 3.0, 20.0, 0.25
#: the part of the free memory that a call may take
_SHARE = 0.5
#: float32 arrays of attention's scores alive at once, if the module has as many heads as most have
_SCORES, _HEADS = 3, 16


@dataclass
class Found:
    """What the search found.

    Attributes:
        longest: the longest input that was taken.
        reason: why one longer by a token is not; none: nothing says that there is a limit.
        cheap: the lengths that were taken quickly, ascending.
    """

    longest: int
    reason: str = ""
    cheap: list[int] = field(default_factory=list)

    @property
    def limit(self) -> int | None:
        """The longest input that the module takes; None: none was found."""
        return self.longest if self.reason else None


def search(attempt: Callable[[int], str], start: int, longest: int = LONGEST) -> Found:
    """Call ``attempt`` with longer and longer inputs. It says why a length is not taken, or nothing.

    ``start`` is taken. No call is made that would need more than half of the free memory or `CALL` seconds, by what
    the calls before it needed.
    """
    longest_found = Found(start)
    bad: int | None = None
    costs, began = _Costs(start), time.monotonic()
    while time.monotonic() - began < SEARCH:
        low = longest_found.longest
        if bad is None:
            length, last = min(1 << low.bit_length(), longest - 1) if low < longest - 1 else longest, False
            if not costs.fits(length):  # tables end at powers of two more often than elsewhere
                length, last = low + 1, True
        else:
            length, last = (low + bad) // 2, False
        if length in (low, bad) or length > longest:
            break
        with costs.of(length):
            reason = attempt(length)
        if reason:
            bad, longest_found.reason = length, reason
        elif last:
            break
        else:
            longest_found.longest = length
            if costs.seconds < CHEAP:
                longest_found.cheap.append(length)
    return longest_found


class _Costs:
    """Seconds and bytes of the last call, from which those of a longer one are foretold: both grow by its square."""

    def __init__(self, length: int) -> None:
        self.length, self.seconds, self.bytes = length, 0.0, 0

    def of(self, length: int) -> "_Costs":
        self._measured = length
        return self

    def __enter__(self) -> None:
        self._before = time.monotonic(), _peak()

    def __exit__(self, *_: object) -> None:
        self.length = self._measured
        self.seconds, self.bytes = time.monotonic() - self._before[0], _peak() - self._before[1]

    def fits(self, length: int) -> bool:
        grows = (length / self.length) ** 2
        need = max(self.bytes * grows, 4 * _SCORES * _HEADS * length**2)
        return self.seconds * grows <= CALL and need <= _SHARE * available()


def _peak() -> int:
    """The most bytes that this process had in memory so far."""
    with contextlib.suppress(ImportError):  # Windows has none
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else 1024 * peak
    return 0
