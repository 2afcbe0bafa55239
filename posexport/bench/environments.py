"""Modules run in processes of their own, here or in a rival's environment. Imports no torch.

The caller must stay small: of a process the system says at least what its parent held when it began. Workers ask it
about themselves (`posexport.bench.workers.memory`).
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

RIVALS = Path(".cache/rivals")
_ROOT = Path(__file__).resolve().parents[2]
#: the package's folder comes last on the path: a rival's libraries are its own, not ours
_RUN = "import runpy, sys; sys.path.append({root!r}); runpy.run_module({module!r}, None, '__main__', alter_sys=True)"


class FailedError(Exception):
    """A process that gave no result; the message says why."""


@dataclass(frozen=True)
class Ended:
    """What a process printed, its peak memory in bytes (None where the system does not say) and its time."""

    output: str
    peak: int | None
    seconds: float


def python_of(environment: str | None) -> str:
    """The interpreter of a rival's environment; None: ours.

    Raises:
        FailedError: the environment is not there.
    """
    if environment is None:
        return sys.executable
    path = RIVALS / environment / "bin" / "python"
    if not (RIVALS / environment / "installed").exists() or not path.exists():
        raise FailedError(
            f"its environment {RIVALS / environment} is not there; make it with ci/rivals/setup {environment}"
        )
    return str(path.absolute())


def run(environment: str | None, module: str, arguments: Sequence[str], *, seconds: float = 1800) -> Ended:
    """``python -m module arguments`` in an environment.

    Raises:
        FailedError: it failed, with the last line that it printed on stderr, or took more than ``seconds``.
    """
    code = _RUN.format(root=str(_ROOT), module=module)
    alone = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONWARNINGS": "ignore"}
    started = time.perf_counter()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        command = [python_of(environment), "-P", "-c", code, *arguments]
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=alone)
        timer = threading.Timer(seconds, child.kill)
        timer.start()
        try:
            peak = _wait(child)
        except BaseException:
            child.kill()
            child.wait()
            raise
        finally:
            timer.cancel()
        took = time.perf_counter() - started
        if child.returncode:
            err.seek(0)
            raise FailedError(_reason(child.returncode, err.read(), took >= seconds))
        out.seek(0)
        return Ended(out.read(), peak, took)


def _wait(child: "subprocess.Popen[bytes]") -> int | None:
    """Wait for its end; its peak memory in bytes."""
    if sys.platform == "win32":
        child.wait()
        return None
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _reason(code: int, error: str, late: bool) -> str:
    """One line: what went wrong."""
    if late:
        return "it took too long and was stopped"
    lines = [line.strip() for line in re.sub(r"\x1b\[[0-9;]*m", "", error).splitlines() if line.strip()]
    # the first exception of a traceback is the cause of those after it; what else libraries say is not it
    named = [
        line for line in lines if re.match(r"[\w.]*(Error|Exception|Exit)\b", line) or line.startswith("posexport:")
    ]
    said = named[0] if named else (lines or ["it said nothing"])[-1]
    said = said.replace(f"{Path.cwd()}{os.sep}", "")  # results are read on other machines
    return f"{said:.300}" if code > 0 else f"it was killed by {signal.Signals(-code).name}: {said:.200}"
