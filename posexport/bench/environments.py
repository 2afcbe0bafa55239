"""Modules run in processes of their own, here or in a third-party exporter's environment. Imports no torch.

The caller must stay small: of a process the system says at least what its parent held when it began. Workers ask it
about themselves (`posexport.bench.workers.memory`).
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
from typing import Any

ENVIRONMENTS = Path(".cache/rivals")
_ROOT = Path(__file__).resolve().parents[2]
#: the package's folder comes last on the path: an environment's own libraries come first
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
    """The interpreter of a third-party exporter's environment; None: this one.

    Raises:
        FailedError: the environment is not there.
    """
    if environment is None:
        return sys.executable
    path = ENVIRONMENTS / environment / "bin" / "python"
    if not (ENVIRONMENTS / environment / "installed").exists() or not path.exists():
        raise FailedError(
            f"its environment {ENVIRONMENTS / environment} is not there; make it with ci/rivals/setup {environment}"
        )
    return str(path.absolute())


def pins(environment: str | None) -> Path:
    """The file with the versions of an exporter's environment."""
    return Path("ci/rivals", f"{environment}.txt")


def pinned(environment: str) -> dict[str, str]:
    """Versions of an environment's packages by name; none where the file is not there."""
    path = pins(environment)
    lines = path.read_text().splitlines() if path.is_file() else []
    pairs = (line.partition("#")[0].split("==") for line in lines if "==" in line.partition("#")[0])
    return {name.strip(): version.strip() for name, version in pairs}


def named(environment: str | None, library: str) -> str:
    """The key of a library's version in `posexport.bench.records.Document`; environments have versions of their own."""
    return library if environment is None else f"{environment}: {library}"


def run(environment: str | None, module: str, arguments: Sequence[str], *, seconds: float = 1800) -> Ended:
    """``python -m module arguments`` in an environment.

    Raises:
        FailedError: it failed, with the last line that it printed on stderr, or took more than ``seconds``.
    """
    started = time.perf_counter()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        command = _command(environment, module, arguments)
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=_alone())
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


class Worker:
    """``python -m module arguments`` in an environment, that answers each line it is sent by a line of JSON.

    All methods raise FailedError when it has failed, with the last line that it printed on stderr, or when it has lived
    for more than ``seconds``.
    """

    def __init__(
        self, environment: str | None, module: str, arguments: Sequence[str], *, seconds: float = 1800
    ) -> None:
        self._started, self._seconds = time.perf_counter(), seconds
        self._err = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed with the process)
        self._child = subprocess.Popen(
            _command(environment, module, arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._err,
            env=_alone(),
        )
        self._timer = threading.Timer(seconds, self._child.kill)
        self._timer.start()

    def ask(self, line: str) -> dict[str, Any]:
        """What it answers; what its libraries print is passed over."""
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

    def kill(self) -> None:
        if self._child.returncode is None:
            self._child.kill()
            _wait(self._child)
        self._free()

    def close(self) -> int | None:
        """Wait for its end, which it finds in its input; its peak memory in bytes."""
        assert self._child.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._child.stdin.close()
        peak = _wait(self._child)
        if self._child.returncode:
            self._err.seek(0)
            late = time.perf_counter() - self._started >= self._seconds
            reason = _reason(self._child.returncode, self._err.read(), late)
            self._free()
            raise FailedError(reason)
        self._free()
        return peak

    def _free(self) -> None:
        self._timer.cancel()
        self._err.close()
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


def _command(environment: str | None, module: str, arguments: Sequence[str]) -> list[str]:
    return [python_of(environment), "-P", "-c", _RUN.format(root=str(_ROOT), module=module), *arguments]


def _alone() -> dict[str, str]:
    """The variables of a process that reaches for nothing outside."""
    return {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONWARNINGS": "ignore"}


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
