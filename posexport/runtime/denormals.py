"""Denormal numbers (below 1.2e-38 in float32) as 0 while ONNX Runtime computes in the calling thread, and only then.

A processor takes several times as long over them, and attention makes them: probabilities of keys that are far away.
ONNX Runtime's option ``session.set_denormal_as_zero`` covers its own threads; the calling thread, which computes too,
it covers once a process and leaves it so, for everything else that the thread computes. So here the thread's state is
set around each run, and put back: C's ``fegetenv`` and ``fesetenv`` (C11, 7.6.4), whose environment holds the bits.
"""

import ctypes
import functools
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple


class _Register(NamedTuple):
    """Where glibc's and musl's ``fenv_t`` hold the control register, in bytes, and its bits for denormals as 0."""

    offset: int
    bits: int


#: MXCSR's flush-to-zero and denormals-are-zero (Intel SDM volume 1, 10.2.3); FPCR's FZ (Arm ARM, C5.2.8)
_REGISTERS = {"x86_64": _Register(28, 0x8040), "aarch64": _Register(0, 1 << 24)}
#: more than any ``fenv_t`` takes
_BYTES = 64


@functools.cache
def _functions() -> tuple[Callable[..., int], Callable[..., int], _Register] | None:
    """``fegetenv``, ``fesetenv`` and the register; None on a platform that is not known here."""
    register = _REGISTERS.get(platform.machine())
    if sys.platform != "linux" or register is None:
        return None
    try:
        library = ctypes.PyDLL(None)
        return library.fegetenv, library.fesetenv, register
    except (AttributeError, OSError):
        return None


def supported() -> bool:
    """Whether the calling thread's state can be set and put back on this platform."""
    return _functions() is not None


@contextmanager
def unchanged() -> Iterator[None]:
    """The calling thread's state after the block is what it was before, whatever the block did to it."""
    functions = _functions()
    if functions is None:
        yield
        return
    get, put, _ = functions
    before = ctypes.create_string_buffer(_BYTES)
    get(before)
    try:
        yield
    finally:
        put(before)


@contextmanager
def as_zero() -> Iterator[None]:
    """Denormals are 0 in the calling thread inside the block; then as before. Nothing where it is not `supported`."""
    functions = _functions()
    if functions is None:
        yield
        return
    get, put, (offset, bits) = functions
    before = ctypes.create_string_buffer(_BYTES)
    get(before)
    state = bytearray(before.raw)
    control = int.from_bytes(state[offset : offset + 4], "little") | bits
    state[offset : offset + 4] = control.to_bytes(4, "little")
    put(bytes(state))
    try:
        yield
    finally:
        put(before)
