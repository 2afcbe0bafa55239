"""Freed memory goes back to the system (glibc only; elsewhere as it is).

By default glibc takes blocks of up to 32 MB from its pool, where tensors of different sizes leave holes that no later
one fits: a call of a module takes up to twice what it has in use.
"""

import ctypes
import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil

#: the option of mallopt; bytes from which on a block has pages of its own, and glibc's largest
_MMAP_THRESHOLD, _PAGES_FROM, _MOST = -3, 1 << 22, 1 << 25
#: bytes by which the process may grow without freed memory being returned, and what it took after the last time
_GROWN, _after_trim = 1 << 27, [0]


@functools.cache
def _function(name: str) -> Any:
    """A function of glibc; one that does nothing on other systems."""
    function = getattr(ctypes.CDLL(None), name, None) if sys.platform.startswith("linux") else None
    return function or (lambda *_: None)


def trim() -> None:
    """Return freed memory from the C library's pool."""
    _function("malloc_trim")(0)


def trim_grown() -> None:
    """`trim` where this process takes `_GROWN` bytes more than after the last time."""
    process = psutil.Process()
    if process.memory_info().rss > _after_trim[0] + _GROWN:
        trim()
        _after_trim[0] = process.memory_info().rss


@contextmanager
def returned_at_once() -> Iterator[None]:
    """Inside the block tensors of 4 MB or more have pages of their own, which go back when they are freed.

    Afterwards those of less than 32 MB come from the pool, as by default once a block of that size was freed.
    """
    _function("mallopt")(_MMAP_THRESHOLD, _PAGES_FROM)
    try:
        yield
    finally:
        _function("mallopt")(_MMAP_THRESHOLD, _MOST)
