"""Arena memory between calls: ONNX Runtime keeps the memory of its largest call unless a run option shrinks the arena.

After shrinking, the next call allocates its pages again, which costs little relative to a long call and much relative
to a short one. So calls of up to `LARGE` tokens keep their memory, and larger ones release it.
"""

import ctypes
import functools
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, get_args

from numpy.typing import NDArray

from posexport.errors import PosexportError
from posexport.targets.providers import DEFAULT_PROVIDER, HOST, provider_named

if TYPE_CHECKING:
    from onnxruntime import RunOptions

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

    @staticmethod
    def trim() -> None:
        """Return freed heap memory from the C library to the system (``malloc_trim``)."""
        trim = _malloc_trim()
        if trim is not None:
            trim(0)


def _is_large(array: NDArray[Any]) -> bool:
    return bool(array.size > (LARGE if array.dtype.kind in "iub" else _LARGE_FLOATS))


@functools.cache
def _shrinking(devices: tuple[str, ...]) -> "RunOptions":
    from onnxruntime import RunOptions

    options = RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", ";".join(f"{name}:0" for name in devices))
    return options


@functools.cache
def _malloc_trim() -> Any:
    """glibc's ``malloc_trim``; None on other systems."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
