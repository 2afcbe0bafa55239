"""How much memory this process holds, and held at most. Imports the standard library alone."""

import re
import sys
from pathlib import Path

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Memory:
    """Bytes since `mark`; where the system keeps one peak for the whole life of a process, above that peak."""

    def __init__(self) -> None:
        self._before = self._base = 0

    def mark(self) -> None:
        """From here on growth is counted."""
        self._before = peak()
        try:
            _CLEAR.write_bytes(b"5")  # Linux: resets the peak to the current size
        except OSError:
            self._base = self._before
        else:
            self._base = resident()

    def growth(self) -> int:
        """By which the peak rose above what was held at `mark`."""
        return max(0, peak() - self._base)

    def whole(self) -> int:
        """The peak of the process's life."""
        return max(self._before, peak())


def peak() -> int:
    """Bytes that this process held at most since its start or the last mark; 0 where the system does not say.

    On Linux not what getrusage says, to which the memory of the parent belongs.
    """
    if _STATUS.exists():
        return _status("VmHWM")
    if sys.platform == "win32":
        return 0
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def resident() -> int:
    """Bytes that this process holds now; 0 where the system does not say."""
    return _status("VmRSS") if _STATUS.exists() else 0


def _status(name: str) -> int:
    match = re.search(rf"^{name}:\s+(\d+) kB", _STATUS.read_text(encoding="utf-8"), re.MULTILINE)
    return 1024 * int(match[1]) if match else 0
