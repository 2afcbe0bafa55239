"""Cases in worker processes: one that dies or hangs fails its case, and another takes the next.

A process takes cases of several parts, for to import everything and to begin with a device takes longer than a case.
"""

import contextlib
import itertools
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from part import Part, Row

HERE = Path(__file__).parent
Case = tuple[Part, str]


def run(cases: Sequence[Case], ends: float, *, rehearse: bool) -> Iterator[tuple[Part, str, Row]]:
    """Each case and its row, as they are done; none begins when the monotonic clock is past ``ends``."""
    for (alone, stubs), together in itertools.groupby(cases, lambda case: (case[0].alone, case[0].stubs)):
        count = 1 if alone or rehearse else max(1, (os.cpu_count() or 2) - 1)
        yield from _Pool(list(together), ends, rehearse=rehearse, stand_ins=rehearse and stubs).run(count)


class _Pool:
    """Processes that take these cases in turn; ``stand_ins``: with the dry run's in the place of CUDA's libraries."""

    def __init__(self, cases: list[Case], ends: float, *, rehearse: bool, stand_ins: bool) -> None:
        self._waiting: queue.SimpleQueue[Case] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[Part, str, Row] | None] = queue.SimpleQueue()
        self._ends, self._rehearse, self._stand_ins = ends, rehearse, stand_ins
        self._size = len(cases)
        for case in cases:
            self._waiting.put(case)

    def run(self, count: int) -> Iterator[tuple[Part, str, Row]]:
        """The rows, by at most ``count`` processes."""
        count = min(count, self._size)
        for _ in range(count):
            threading.Thread(target=self._serve).start()
        while count:
            found = self._done.get()
            if found is None:
                count -= 1
            else:
                yield found

    def _serve(self) -> None:
        worker: subprocess.Popen[str] | None = None
        while time.monotonic() < self._ends:
            try:
                part, case = self._waiting.get_nowait()
            except queue.Empty:
                break
            worker = worker if worker is not None and worker.poll() is None else self._started()
            row = _asked(worker, part, case)
            # what a failed case did to the device is not known
            if not row["passed"]:
                _ended(worker)
            self._done.put((part, case, row))
        if worker is not None:
            _ended(worker)
        self._done.put(None)

    def _started(self) -> "subprocess.Popen[str]":
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([".", str(HERE), os.environ.get("PYTHONPATH", "")])}
        environment.setdefault("OMP_NUM_THREADS", "1")
        if self._stand_ins:
            environment |= _stand_ins()
        command = [sys.executable, str(HERE / "case_process.py"), *(["--rehearse"] if self._rehearse else [])]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def _stand_ins() -> dict[str, str]:
    """A machine with the dry run's H100."""
    from libraries import libraries

    return {"LD_LIBRARY_PATH": str(libraries()), "DRYRUN_COMPUTE": "90"}


def _asked(worker: "subprocess.Popen[str]", part: Part, case: str) -> Row:
    assert worker.stdin is not None
    assert worker.stdout is not None
    timer = threading.Timer(part.limit, worker.kill)
    timer.start()
    try:
        worker.stdin.write(f"{part.name}: {case}\n")
        worker.stdin.flush()
        answer = worker.stdout.readline()
    except BrokenPipeError:
        answer = ""
    finally:
        timer.cancel()
    if answer:
        row: Row = json.loads(answer)
        return row
    code = worker.wait()
    why = f"it took more than {part.limit} s" if code == -9 else f"its process ended with {code}"
    return {"passed": False, "note": why, "seconds": 0.0}


def _ended(worker: "subprocess.Popen[str]") -> None:
    if worker.stdin is not None and worker.poll() is None:
        with contextlib.suppress(BrokenPipeError):
            worker.stdin.close()
        try:
            worker.wait(20)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()
