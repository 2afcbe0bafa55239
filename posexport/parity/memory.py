"""Whether a point fits into this machine's memory. Imports no torch."""

import os
from collections.abc import Sequence
from pathlib import Path

from posexport.parity.grid import GridPoint
from posexport.spec import OutputSpec

#: the part of the free memory that a point may take
SHARE = 0.8
#: score-shaped float64 arrays alive at once: q k^T, the term, their sum, the probabilities
_SCORES = 4
#: each output lives in float64, in PyTorch's and in ONNX Runtime's float32, and once more while one is made
_OUTPUTS = 2.5


def needed(point: GridPoint, outputs: Sequence[OutputSpec], heads: int) -> int:
    """A rough upper bound, in bytes, of what one point's activations take."""
    keys = max(point.tokens, point.memory or 0)
    scores = _SCORES * 8 * point.batch * heads * point.tokens * keys
    widths = [axis for spec in outputs for axis in spec.axes[-1:] if isinstance(axis, int)]
    return int(scores + _OUTPUTS * 8 * point.batch * point.tokens * sum(widths))


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
