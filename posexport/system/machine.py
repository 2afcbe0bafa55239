"""The memory of this machine, and what its processor lacks. Imports no torch."""

import platform
from functools import cache
from pathlib import Path

import psutil

#: files of the control group that this process is in, as a container sees it
GROUP = Path("/sys/fs/cgroup")
#: what Linux says of the processor
CPU_INFO = Path("/proc/cpuinfo")


def available() -> int:
    """Free memory in bytes: of the machine, or of the control group (container) if that is less."""
    free: int = psutil.virtual_memory().available
    limit, used = GROUP / "memory.max", GROUP / "memory.current"
    if limit.exists() and used.exists() and limit.read_text().strip().isdigit():
        free = min(free, max(0, int(limit.read_text()) - int(used.read_text())))
    return free


def readable(size: float) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"


@cache
def saturates() -> bool:
    """Whether products of uint8 and int8 are summed in 16 bits here: x64 without VNNI, as far as Linux says."""
    if platform.machine() not in ("x86_64", "AMD64") or not CPU_INFO.exists():
        return False
    flags = next((line for line in CPU_INFO.read_text().splitlines() if line.startswith("flags")), "")
    return bool(flags) and "vnni" not in flags
