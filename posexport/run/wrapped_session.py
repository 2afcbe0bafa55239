"""Objects that replace ``InferenceSession.run``: denormals as 0, arena memory, errors in words for the caller.

Processors are several times slower with denormals, which attention produces: probabilities of distant keys. ONNX
Runtime's option ``session.set_denormal_as_zero`` covers its thread pool. For the calling thread, which computes too, it
sets the state once per process and does not restore it, which affects everything else in that thread. So the state is
set around each run and restored, with C's ``fegetenv`` and ``fesetenv`` (C11, 7.6.4).

After shrinking, the next call allocates its pages again, which costs little relative to a long call and much relative
to a short one. So calls of up to `LARGE` tokens keep their memory, and larger ones release it.
"""

import ctypes
import functools
import platform
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from posexport.base.bounds import CACHE_FULL, MASK_MISFIT, POSITION_BEYOND
from posexport.base.spec import NUM_LOGITS
from posexport.base.targets import cuda
from posexport.base.targets.providers import DEFAULT_PROVIDER, HOST, provider_named
from posexport.errors import PosexportError

if TYPE_CHECKING:
    from onnxruntime import RunOptions


def refusal(err: Exception) -> str | None:
    """Why a run failed, if it is something the caller can mend: the length guard's words, too little memory, a card."""
    text = str(err)
    if match := re.search(r"Name:'([^']*(?:long|short)er than \d+ (?:positions|pixels))[^']*'", text):
        return match[1]
    if match := re.search(rf"Name:'({MASK_MISFIT}|{CACHE_FULL}|{POSITION_BEYOND} \d+)[^']*'", text):
        return match[1]
    if reason := cuda.failed(text):
        return reason
    if re.search(r"Available memory of \d+ is smaller than requested", text):
        return "the memory_limit that was given does not hold it; raise it, or use a smaller batch or a shorter input"
    if re.search(r"Failed to allocate memory|bad_alloc", text):
        return "there is not enough memory for it; use a smaller batch or a shorter input"
    return None


class Port(NamedTuple):
    """The fields of ONNX Runtime's NodeArg."""

    name: str
    type: str
    shape: Sequence[int | str]


class WrappedSession:
    """Delegates inputs, outputs and providers to ``session``; subclasses define ``run``."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def get_inputs(self) -> Any:
        return self._session.get_inputs()

    def get_overridable_initializers(self) -> Any:
        return self._session.get_overridable_initializers()

    def get_outputs(self) -> Any:
        return self._session.get_outputs()

    def get_modelmeta(self) -> Any:
        return self._session.get_modelmeta()

    def get_providers(self) -> Any:
        return self._session.get_providers()


class NumLogitsSession(WrappedSession):
    """A session that requires `NUM_LOGITS`, with its default: 0, the logits of all tokens.

    A graph for clients that feed it has no default, and some providers ignore the default that a graph has.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def get_inputs(self) -> Any:
        return [value for value in self._session.get_inputs() if value.name != NUM_LOGITS]

    def get_overridable_initializers(self) -> Any:
        required = [value for value in self._session.get_inputs() if value.name == NUM_LOGITS]
        return [*self._session.get_overridable_initializers(), *required]

    def run(self, names: Any, feeds: Mapping[str, Any], options: Any = None) -> Any:
        return self._session.run(names, {NUM_LOGITS: np.array(0), **feeds}, options)

    def run_with_ort_values(self, names: Any, feeds: Mapping[str, Any], options: Any = None) -> Any:
        from onnxruntime import OrtValue

        default = OrtValue.ortvalue_from_numpy(np.array(0))
        return self._session.run_with_ort_values(names, {NUM_LOGITS: default, **feeds}, options)


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
def denormals_as_zero() -> Iterator[None]:
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


Memory = Literal["flat", "fast"]
DEFAULT_MEMORY: Memory = "flat"
#: elements of the largest integer input (tokens) of a call that keeps its memory
LARGE = 4096
#: the same for other inputs: images, samples, frames
_LARGE_FLOATS = 1 << 20


class MemoryPolicy:
    """Whether a session releases its arena after a call; with ``fast`` it never does."""

    def __init__(self, memory: Memory = DEFAULT_MEMORY, provider: str = DEFAULT_PROVIDER) -> None:
        if memory not in get_args(Memory):
            raise PosexportError(f"unknown memory {memory!r:.60}; known: {', '.join(get_args(Memory))}")
        self._memory = memory
        self._devices = [HOST, *({"gpu"} if provider_named(provider).device != HOST else ())]

    def options(self, feeds: Iterable[NDArray[Any]]) -> "RunOptions | None":
        """Run options that release the arena after a call with ``feeds`` (KV cache excluded); None to keep it."""
        if self._memory == "fast" or not any(map(_is_large, feeds)):
            return None
        return _shrinking(tuple(self._devices))


def _is_large(array: NDArray[Any]) -> bool:
    return bool(array.size > (LARGE if array.dtype.kind in "iub" else _LARGE_FLOATS))


@functools.cache
def _shrinking(devices: tuple[str, ...]) -> "RunOptions":
    from onnxruntime import RunOptions

    options = RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", ";".join(f"{name}:0" for name in devices))
    return options
