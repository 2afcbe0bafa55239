"""The stand-in of libcudart in this process: what it was asked for, and what it answers."""

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: `Event.numbers` of an allocation: bytes, and this for memory of the device
DEVICE_MEMORY = 2


@dataclass(frozen=True)
class Event:
    """One request: when (ns), its kind (launch, product, copy, set, sync, alloc, free, call), what, and its numbers."""

    ns: int
    kind: str
    name: str
    numbers: tuple[int, ...]


class StandIn:
    """The library, which must be loaded already: by a process whose LD_LIBRARY_PATH has it."""

    def __init__(self, folder: Path) -> None:
        self._library = ctypes.CDLL(next(folder.glob("libcudart.so.*")).name)
        self._library.dryrun_memory_now.restype = self._library.dryrun_memory_peak.restype = ctypes.c_int64

    def allocator(self) -> dict[str, str]:
        """Options of the provider, by which every tensor is a block of its own: an arena would hide them."""
        names = ("alloc", "free", "empty_cache")
        addresses = {n: ctypes.cast(getattr(self._library, f"dryrun_{n}"), ctypes.c_void_p).value for n in names}
        return {f"gpu_external_{name}": str(address) for name, address in addresses.items()}

    def reset(self) -> None:
        """Forget all events, and the peak of memory; expect the copies to the host from the first again."""
        self._library.dryrun_expect_again()
        self._library.dryrun_reset()

    def expect(self, contents: Iterable[bytes]) -> None:
        """What copies to the host will say, in order: the device has computed nothing."""
        self._library.dryrun_expect_nothing()
        for content in contents:
            self._library.dryrun_expect(ctypes.c_char_p(content), ctypes.c_size_t(len(content)))

    @property
    def memory(self) -> int:
        """Bytes of the device's memory in use."""
        return int(self._library.dryrun_memory_now())

    @property
    def peak(self) -> int:
        """The most of `memory` since `reset`."""
        return int(self._library.dryrun_memory_peak())

    def events(self, file: Path) -> list[Event]:
        """All since `reset`, by way of a file."""
        self._library.dryrun_write(str(file).encode())
        fields = (line.split("\t") for line in file.read_text().splitlines())
        return [Event(int(ns), kind, name, tuple(map(int, rest))) for ns, kind, name, *rest in fields]


def demangled(names: Iterable[str]) -> dict[str, str]:
    """C++ names as the C++ runtime's own demangler writes them; others as they are."""
    demangle: Any = ctypes.CDLL("libstdc++.so.6")["__cxa_demangle"]
    demangle.restype, demangle.argtypes = ctypes.c_void_p, [ctypes.c_char_p, *[ctypes.c_void_p] * 3]
    plain = {}
    for name in set(names):
        pointer = demangle(name.encode(), None, None, None)
        plain[name] = (ctypes.string_at(pointer) or b"").decode() if pointer else name
    return plain
