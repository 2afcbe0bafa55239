"""Memory of large tensors that goes back to the system as soon as it is freed (glibc only; elsewhere as it is).

By default glibc takes blocks of up to 32 MB from its pool, where tensors of different sizes leave holes that no later
one fits: a call of a module takes up to twice what it has in use.
"""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

#: the option of mallopt; bytes from which on a block has pages of its own, and glibc's largest
_MMAP_THRESHOLD, _PAGES_FROM, _MOST = -3, 1 << 22, 1 << 25


@contextmanager
def returned_at_once() -> Iterator[None]:
    """Inside the block tensors of 4 MB or more have pages of their own.

    Afterwards those of less than 32 MB come from the pool, as by default once a block of that size was freed.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform.startswith("linux") else None
    if set_option is None:
        yield
        return
    set_option(_MMAP_THRESHOLD, _PAGES_FROM)
    try:
        yield
    finally:
        set_option(_MMAP_THRESHOLD, _MOST)
