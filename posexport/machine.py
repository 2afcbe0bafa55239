"""The memory of this machine. Imports no torch."""

from pathlib import Path

import psutil

#: files of the control group that this process is in, as a container sees it
GROUP = Path("/sys/fs/cgroup")


def available() -> int:
    """Bytes that can be taken now: the machine's, or less inside a control group."""
    free: int = psutil.virtual_memory().available
    limit, used = GROUP / "memory.max", GROUP / "memory.current"
    if limit.exists() and used.exists() and limit.read_text().strip().isdigit():
        free = min(free, max(0, int(limit.read_text()) - int(used.read_text())))
    return free


def readable(size: float) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
