"""The memory of this machine, and what its processor has and lacks. Imports no torch."""

import os
import platform
import re
from functools import cache
from pathlib import Path

import psutil

#: files of the control group that this process is in, as a container sees it
GROUP = Path("/sys/fs/cgroup")
#: what Linux says of the processor
CPU_INFO = Path("/proc/cpuinfo")
#: instruction sets by which kernels of ONNX Runtime and PyTorch differ, as Linux names them on x64 and Arm
_INSTRUCTIONS = re.compile(r"avx|amx|f16c|fma|sse4|asimd|bf16|i8mm|sve|sme(?!p)")


def available() -> int:
    """Free memory in bytes: of the machine, or of the control group (container) if that is less."""
    free = _memory()[1]
    limit, used = memory_limit(), GROUP / "memory.current"
    if limit is not None and used.exists():
        free = min(free, max(0, limit - int(used.read_text(encoding="ascii"))))
    return free


def total() -> int:
    """Memory of the machine in bytes."""
    return _memory()[0]


def _memory() -> tuple[int, int]:
    """Bytes of the machine, and those that are free."""
    try:
        memory = psutil.virtual_memory()
        return memory.total, memory.available
    except OSError:  # Linux without /proc
        page = os.sysconf("SC_PAGE_SIZE")
        return page * os.sysconf("SC_PHYS_PAGES"), page * os.sysconf("SC_AVPHYS_PAGES")


def memory_limit() -> int | None:
    """The limit of the control group (container) in bytes; None: it has none, or this is not Linux."""
    try:
        limit = (GROUP / "memory.max").read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(limit) if limit.isdigit() else None


def readable(size: float) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"


def processor() -> str:
    """The processor's name."""
    return _cpu_info("model name") or platform.processor() or platform.machine()


def instructions() -> list[str] | None:
    """The processor's vector and matrix instructions; None where the system has no /proc/cpuinfo."""
    flags = _cpu_info("flags") or _cpu_info("Features")
    return sorted(flag for flag in flags.split() if _INSTRUCTIONS.match(flag)) if flags else None


@cache
def saturates() -> bool:
    """Whether products of uint8 and int8 are summed in 16 bits here: x64 without VNNI, as far as Linux says."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return False
    flags = _cpu_info("flags")
    return bool(flags) and "vnni" not in flags


def _cpu_info(key: str) -> str:
    """The first value of ``key`` in /proc/cpuinfo; empty where there is none."""
    try:
        lines = CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    pairs = (line.partition(":") for line in lines)
    return next((value.strip() for name, _, value in pairs if name.strip() == key), "")
