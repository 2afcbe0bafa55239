"""The default number of threads, within the limits of a container, which ONNX Runtime ignores.

ONNX Runtime starts one thread per core of the machine, whatever the affinity and the quota of the process: in a
container of one CPU on 64 cores, 64 threads that take turns.
"""

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import psutil

from posexport.base.system.machine import GROUP

#: the control groups of this process, one ``ID:CONTROLLERS:PATH`` a line
MEMBERSHIP = Path("/proc/self/cgroup")
#: where the controller of CPUs is mounted below `GROUP`: cgroup v2, and v1
_MOUNTS = ("", "unified", "cpu", "cpu,cpuacct")


def session_threads(requested: int = 0) -> int:
    """Threads for ONNX Runtime: those ``requested``; for 0 `allowed_threads`.

    0, ONNX Runtime's default, where all cores are allowed: it then binds each thread to a core.
    """
    allowed = allowed_threads()
    return requested or (allowed if allowed < _cores() else 0)


def allowed_threads() -> int:
    """The smallest of the machine's cores, the affinity, the cgroup quota (rounded up) and OMP_NUM_THREADS."""
    return max(1, min(_cores(), affinity(), *map(math.ceil, _quotas()), *_openmp()))


def affinity() -> int:
    """Logical CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    process = psutil.Process()
    return len(process.cpu_affinity()) if hasattr(process, "cpu_affinity") else os.cpu_count() or 1


def _cores() -> int:
    """Physical cores; logical CPUs where the system does not say."""
    cores = None
    with contextlib.suppress(OSError):  # Linux without /proc
        cores = psutil.cpu_count(logical=False)
    return cores or os.cpu_count() or 1


def _openmp() -> Iterator[int]:
    """The first number of OMP_NUM_THREADS, which lists one for each nested level."""
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if first.isdecimal() and int(first):
        yield int(first)


def _quotas() -> Iterator[float]:
    """CPUs allowed by the control groups of this process and by those around them."""
    paths = [PurePosixPath(line.split(":", 2)[-1]) for line in _read(MEMBERSHIP).splitlines()]
    groups = {str(group).lstrip("/") for path in paths for group in (path, *path.parents)} | {""}
    for folder in {GROUP / mount / group for mount in _MOUNTS for group in groups}:
        numbers = _read(folder / "cpu.max").split() or [
            _read(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")
        ]
        if len(numbers) == 2 and all(number.isdecimal() and int(number) for number in numbers):
            yield int(numbers[0]) / int(numbers[1])


def _read(file: Path) -> str:
    """The text of a file; empty if it cannot be read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
