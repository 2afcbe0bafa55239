"""Modules in separate processes, run by this interpreter or another one. Imports no torch.

The caller must stay small: the peak that the system reports for a process includes its parent's memory at the start.
Workers measure themselves (`posexport.inspect.bench.workers.memory`).
"""

import contextlib
import json
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
from typing import IO, Any

_ROOT = Path(__file__).resolve().parents[3]
#: the package's folder comes last on the path: libraries of another interpreter come first
_RUN = "import runpy, sys; sys.path.append({root!r}); runpy.run_module({module!r}, None, '__main__', alter_sys=True)"


class FailedError(Exception):
    """A process that gave no result; the message says why."""


@dataclass(frozen=True)
class Ended:
    """The output of a process, its peak memory in bytes (None if the system does not report it) and its time."""

    output: str
    peak: int | None
    seconds: float


def run(module: str, arguments: Sequence[str], *, python: str | None = None, seconds: float = 1800) -> Ended:
    """``python -m module arguments``; ``python``: another interpreter.

    Raises:
        FailedError: it failed, with the exception that it printed on stderr, or took more than ``seconds``.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as out:
        child = _Child(module, arguments, python, seconds, subprocess.DEVNULL, out)
        try:
            peak = child.wait()
        finally:
            child.kill()
        out.seek(0)
        return Ended(out.read(), peak, child.age)


class _Child:
    """A process that is killed after ``seconds``."""

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        python: str | None,
        seconds: float,
        stdin: int,
        stdout: int | IO[Any],
    ) -> None:
        self._started, self._seconds = time.perf_counter(), seconds
        # closed with the process
        self._err = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        command = [python or sys.executable, "-P", "-c", _RUN.format(root=str(_ROOT), module=module), *arguments]
        # it reaches for nothing outside
        alone = {
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "PYTHONIOENCODING": "utf-8",
            "PYTHONWARNINGS": "ignore",
        }
        self._child = subprocess.Popen(
            command, stdin=stdin, stdout=stdout, stderr=self._err, env={**os.environ, **alone}
        )
        self._timer = threading.Timer(seconds, self._child.kill)
        self._timer.start()

    @property
    def age(self) -> float:
        """The time since the process started, in seconds."""
        return time.perf_counter() - self._started

    def wait(self) -> int | None:
        """Its peak memory in bytes, when it has ended; FailedError says why it failed."""
        peak = _wait(self._child)
        try:
            if self._child.returncode:
                self._err.seek(0)
                raise FailedError(_reason(self._child.returncode, self._err.read(), self.age >= self._seconds))
        finally:
            self._free()
        return peak

    def kill(self) -> None:
        if self._child.returncode is None:
            self._child.kill()
            _wait(self._child)
        self._free()

    def _free(self) -> None:
        self._timer.cancel()
        self._err.close()
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


class Worker(_Child):
    """``python -m module arguments``, which replies to each line with a line of JSON.

    `ask` and `close` raise FailedError when it has failed, or when it has lived for more than ``seconds``.
    """

    def __init__(
        self, module: str, arguments: Sequence[str], *, python: str | None = None, seconds: float = 1800
    ) -> None:
        super().__init__(module, arguments, python, seconds, subprocess.PIPE, subprocess.PIPE)

    def ask(self, line: str) -> dict[str, Any]:
        """The reply to a line; other output, for example of libraries, is skipped."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, and so does its output
            self._child.stdin.write(f"{line}\n".encode())
            self._child.stdin.flush()
        for answer in self._child.stdout:
            if answer.startswith(b"{"):
                document: dict[str, Any] = json.loads(answer)
                return document
        self.close()
        raise FailedError("it ended without an answer")

    def close(self) -> int | None:
        """Close its input and wait for its end; returns its peak memory in bytes."""
        assert self._child.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._child.stdin.close()
        return self.wait()


def _wait(child: "subprocess.Popen[bytes]") -> int | None:
    """Wait for its end; its peak memory in bytes."""
    if sys.platform == "win32":
        child.wait()
        return None
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _reason(code: int, error: str, late: bool) -> str:
    if late:
        return "it took too long and was stopped"
    lines = [line.strip() for line in re.sub(r"\x1b\[[0-9;]*m", "", error).splitlines() if line.strip()]
    # the first exception of a traceback is the cause of those after it; what else libraries say is not it
    named = [
        line for line in lines if re.match(r"[\w.]*(Error|Exception|Exit)\b", line) or line.startswith("posexport:")
    ]
    message = named[0] if named else (lines or ["it said nothing"])[-1]
    message = message.replace(f"{Path.cwd()}{os.sep}", "")  # results are read on other machines
    return f"{message:.300}" if code > 0 else f"it was killed by {signal.Signals(-code).name}: {message:.200}"
