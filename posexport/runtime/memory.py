"""Memory between calls: ONNX Runtime keeps what its largest call took, for good, unless it is told to give it back.

Giving back costs the next call the pages that it asks for anew, which is little beside a call of many tokens and much
beside a short one. So calls up to `LARGE` keep their memory, which their size bounds, and larger ones return theirs.
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
#: tokens, or other integers, of the largest input of a call whose memory is kept
LARGE = 4096
#: and numbers of what is no integer: images, samples, frames
_LARGE_FLOATS = 1 << 20


class Kept:
    """What a session keeps after a call: with ``fast`` all of it."""

    def __init__(self, memory: Memory = DEFAULT_MEMORY, provider: str = DEFAULT_PROVIDER) -> None:
        if memory not in get_args(Memory):
            raise PosexportError(f"unknown memory {memory!r:.60}; known: {', '.join(get_args(Memory))}")
        self._memory = memory
        self._devices = [HOST, *({"gpu"} if provider_named(provider).device != HOST else ())]

    def options(self, feeds: Iterable[NDArray[Any]]) -> "RunOptions | None":
        """Of a call that gives back what it took; None: it keeps it. ``feeds``: without a KV cache."""
        if self._memory == "fast" or not any(map(_is_large, feeds)):
            return None
        return _giving_back(tuple(self._devices))

    @staticmethod
    def trim() -> None:
        """Give the system what ONNX Runtime gave the C library, which keeps it where anything lies behind it."""
        trim = _malloc_trim()
        if trim is not None:
            trim(0)


def _is_large(array: NDArray[Any]) -> bool:
    return bool(array.size > (LARGE if array.dtype.kind in "iub" else _LARGE_FLOATS))


@functools.cache
def _giving_back(devices: tuple[str, ...]) -> "RunOptions":
    from onnxruntime import RunOptions

    options = RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", ";".join(f"{name}:0" for name in devices))
    return options


@functools.cache
def _malloc_trim() -> Any:
    """Of glibc; None elsewhere."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
