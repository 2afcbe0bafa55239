"""The child process: ``MODEL PROVIDER SECONDS BYTES``. Runs a stranger's graph for the arrays that it reads.

It has limits of CPU time and address space, and loads no library but ONNX Runtime's: `make_session` registers none
that a model could name.
"""

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import IO, Any

from posexport.inspect.audit.calls.frames import Frame, packed, read, unpacked, write

#: PR_SET_PDEATHSIG of prctl(2)
_DIES_WITH_PARENT = 1


def main(model: str, provider: str, seconds: str, most: str) -> None:
    """Answer frames from stdin on stdout until stdin ends."""
    # what libraries print must not be read as an answer
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    _limit(int(float(seconds)) + 1, int(most) if provider == "cpu" else 0)
    # a model may name a configuration in its metadata, which is read only if this is set
    os.environ.pop("ORT_LOAD_CONFIG_FROM_MODEL", None)
    serve(Path(model), provider, sys.stdin.buffer, replies, int(most))


def serve(path: Path, provider: str, requests: IO[bytes], replies: IO[bytes], most: int) -> None:
    """A reply for each request; sessions are kept by level."""
    from posexport.run.providers import make_session, quiet

    quiet()
    sessions: dict[str, Any] = {}
    while True:
        try:
            request = read(requests, most)
        except EOFError:
            return
        try:
            if request.model:
                session = make_session(request.model, provider=provider, threads=1, spinning=False, weights=path.parent)
            else:
                if request.level not in sessions:
                    sessions[request.level] = make_session(
                        path, provider=provider, threads=1, level=request.level, spinning=False
                    )
                session = sessions[request.level]
            names = [value.name for value in session.get_outputs() if value.type.startswith("tensor(")]
            values = session.run(names, unpacked(request.tensors), _quiet_run())
            outputs = {name: y for name, y in zip(names, values, strict=True) if y.dtype.kind in "biuf"}
            reply = Frame(tensors=packed(outputs))
        except MemoryError:
            reply = Frame(failure="there is not enough memory for it")
        except Exception as err:  # noqa: BLE001 (onnxruntime's exceptions share no base class)
            reply = Frame(failure=" ".join(str(err).split())[:4000] or type(err).__name__)
        write(replies, reply)


def _quiet_run() -> Any:
    import onnxruntime

    options = onnxruntime.RunOptions()
    options.log_severity_level = 4
    return options


def _limit(seconds: int, most: int) -> None:
    """Limits of this process, where the system has them. Providers of devices map more than they use."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_DIES_WITH_PARENT, signal.SIGKILL)
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # it writes nothing
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
        if most:
            resource.setrlimit(resource.RLIMIT_AS, (most, most))


if __name__ == "__main__":
    main(*sys.argv[1:])
