"""The machine, and the state of the source, that figures belong to."""

import os
import platform
import subprocess
from pathlib import Path

import psutil

from posexport.tools.bench.records import Machine


def machine() -> Machine:
    return Machine(
        cpu=_cpu(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory=psutil.virtual_memory().total,
        system=platform.platform(terse=True),
        load=psutil.getloadavg()[0],
    )


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor()
    )


def commit() -> str | None:
    """The commit of the package's checkout, with a + where files differ from it; None outside of one."""

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ("git", *arguments), cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + (
            "+" if git("status", "--porcelain", "--", ":/posexport", ":/models") else ""
        )
    except (OSError, subprocess.CalledProcessError):
        return None
