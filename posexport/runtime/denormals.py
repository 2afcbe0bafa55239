"""Treats denormal numbers (below 1.2e-38 in float32) as 0 in the calling thread while ONNX Runtime computes.

Processors are several times slower with denormals, which attention produces: probabilities of distant keys. ONNX
Runtime's option ``session.set_denormal_as_zero`` covers its thread pool. For the calling thread, which computes too, it
sets the state once per process and does not restore it, which affects everything else in that thread. So the state is
set around each run and restored, with C's ``fegetenv`` and ``fesetenv`` (C11, 7.6.4).
"""

import ctypes
import functools
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple


class _Register(NamedTuple):
    """Byte offset of the control register in glibc's and musl's ``fenv_t``, and its bits for denormals as 0."""

    offset: int
    bits: int


#: MXCSR's flush-to-zero and denormals-are-zero (Intel SDM volume 1, 10.2.3); FPCR's FZ (Arm ARM, C5.2.8)
_REGISTERS = {"x86_64": _Register(28, 0x8040), "aarch64": _Register(0, 1 << 24)}
#: at least the size of any ``fenv_t``
_BYTES = 64


@functools.cache
def _functions() -> tuple[Callable[..., int], Callable[..., int], _Register] | None:
    """``fegetenv``, ``fesetenv`` and the register; None on an unsupported platform."""
    register = _REGISTERS.get(platform.machine())
    if sys.platform != "linux" or register is None:
        return None
    try:
        library = ctypes.PyDLL(None)
        return library.fegetenv, library.fesetenv, register
    except (AttributeError, OSError):
        return None


def supported() -> bool:
    """Whether this platform allows setting and restoring the calling thread's state."""
    return _functions() is not None


@contextmanager
def unchanged() -> Iterator[None]:
    """Restore the calling thread's state after the block."""
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
    """Treat denormals as 0 in the calling thread inside the block. Does nothing unless `supported`."""
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
