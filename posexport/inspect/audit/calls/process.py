"""The parent's end of a child process that runs a stranger's graph: it is killed when it takes too long or too much."""

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
from numpy.typing import NDArray

from posexport.inspect.audit.calls import frames
from posexport.inspect.audit.calls.frames import Arrays, Frame

_ROOT = Path(__file__).resolve().parents[4]
_MODULE = "posexport.inspect.audit.calls.child"
#: the package's folder comes last on the path, the working directory is not on it (-P)
_RUN = f"import runpy, sys; sys.path.append({str(_ROOT)!r}); runpy.run_module({_MODULE!r}, None, '__main__', True)"
#: seconds between looks at the child's memory
_LOOK = 0.1


class EndedError(Exception):
    """The child is no more; the message says why."""


class CallError(Exception):
    """ONNX Runtime raised; the message is ONNX Runtime's, in one line."""


class Child:
    """Calls of one graph in a separate process; a context manager.

    Args:
        model: the file.
        provider: the execution provider.
        seconds: of wall-clock time and of CPU time for all calls together.
        most: bytes of memory.
    """

    def __init__(self, model: Path, provider: str, *, seconds: float, most: int) -> None:
        command = [sys.executable, "-P", "-c", _RUN, str(model), provider, str(seconds), str(most)]
        # it reaches for nothing outside, and no profile or library is named by what it inherits
        alone = {"HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **alone},
            start_new_session=True,
        )
        self._end, self._most = time.monotonic() + seconds, most
        self._reason = ""
        self._watch = threading.Thread(target=self._watched, args=(seconds,), daemon=True)
        self._watch.start()

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __call__(self, feeds: Mapping[str, NDArray[Any]], *, level: str = "all", model: bytes = b"") -> Arrays:
        """The outputs of numbers.

        Raises:
            CallError: ONNX Runtime did not compute them.
            EndedError: the process ended, or was ended.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            frames.write(self._process.stdin, Frame(tensors=frames.packed(feeds), level=level, model=model))
            reply = frames.read(self._process.stdout, self._most)
            outputs = frames.unpacked(reply.tensors)
        except (EOFError, OSError, ValueError, TypeError) as err:
            self._process.kill()
            code = self._process.wait()
            raise EndedError(self._reason or _died(code)) from err
        if reply.failure:
            raise CallError(reply.failure)
        return outputs

    def close(self) -> None:
        """Kills the process and closes its pipes."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()

    def _watched(self, seconds: float) -> None:
        """Kill the process at the end of its time, or when it has more memory than it may."""
        while self._process.poll() is None:
            if time.monotonic() > self._end:
                self._reason = f"its calls took more than {seconds:g} s"
            elif _resident(self._process.pid) > self._most:
                self._reason = f"it took more than {self._most / 1e9:.3g} GB of memory"
            if self._reason:
                self._process.kill()
                return
            time.sleep(_LOOK)


def _resident(pid: int) -> int:
    """Bytes of memory that a process holds; 0 where the system does not say."""
    try:
        held: int = psutil.Process(pid).memory_info().rss
    except (psutil.Error, OSError):
        return 0
    return held


def _died(code: int) -> str:
    import signal

    if code >= 0:
        return f"the process that ran it ended with code {code}"
    return f"the process that ran it was ended by {signal.Signals(-code).name}"
