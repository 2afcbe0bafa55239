"""The memory of this machine. Imports no torch."""

import os
from pathlib import Path


def available() -> int:
    """Bytes that can be taken now: the machine's, or less inside a control group."""
    found = []
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        if "MemAvailable" in fields:
            found.append(int(fields["MemAvailable"].split()[0]) * 1024)
    elif hasattr(os, "sysconf") and "SC_AVPHYS_PAGES" in os.sysconf_names:
        found.append(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    group = Path("/sys/fs/cgroup")
    limit, used = group / "memory.max", group / "memory.current"
    if limit.exists() and used.exists() and limit.read_text().strip().isdigit():
        found.append(max(0, int(limit.read_text()) - int(used.read_text())))
    # a system that does not say is taken to have 8 GiB
    return min(found, default=8 << 30)


def readable(size: float) -> str:
    """Bytes as GiB or MiB."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
