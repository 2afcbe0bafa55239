"""Cases of a part in worker processes: one that dies or hangs fails its case, and another takes the next."""

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from part import Part, Row

HERE = Path(__file__).parent


def run(part: Part, cases: list[str], ends: float, *, rehearse: bool) -> Iterator[tuple[str, Row]]:
    """Each case and its row, as they are done; none begins when the monotonic clock is past ``ends``."""
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[str, Row] | None] = queue.SimpleQueue()
    for case in cases:
        waiting.put(case)
    count = 1 if part.alone or rehearse else min(len(cases), max(1, (os.cpu_count() or 2) - 1))
    threads = [threading.Thread(target=_serve, args=(part, waiting, done, ends, rehearse)) for _ in range(count)]
    for thread in threads:
        thread.start()
    left = count
    while left:
        found = done.get()
        if found is None:
            left -= 1
        else:
            yield found


def _serve(
    part: Part,
    waiting: "queue.SimpleQueue[str]",
    done: "queue.SimpleQueue[tuple[str, Row] | None]",
    ends: float,
    rehearse: bool,
) -> None:
    worker: subprocess.Popen[str] | None = None
    while time.monotonic() < ends:
        try:
            case = waiting.get_nowait()
        except queue.Empty:
            break
        worker = worker if worker is not None and worker.poll() is None else _started(part, rehearse)
        row = _asked(worker, case, part.limit)
        # what a failed case did to the device is not known
        if not row["passed"]:
            _ended(worker)
        done.put((case, row))
    if worker is not None:
        _ended(worker)
    done.put(None)


def _started(part: Part, rehearse: bool) -> "subprocess.Popen[str]":
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([".", str(HERE), os.environ.get("PYTHONPATH", "")])}
    environment.setdefault("OMP_NUM_THREADS", "1")
    if rehearse and part.stubs:
        environment |= _stand_ins()
    command = [sys.executable, str(HERE / "case_process.py"), part.name, *(["--rehearse"] if rehearse else [])]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def _stand_ins() -> dict[str, str]:
    """A machine with the dry run's H100."""
    from libraries import libraries

    return {"LD_LIBRARY_PATH": str(libraries()), "DRYRUN_COMPUTE": "90"}


def _asked(worker: "subprocess.Popen[str]", case: str, limit: int) -> Row:
    assert worker.stdin is not None
    assert worker.stdout is not None
    timer = threading.Timer(limit, worker.kill)
    timer.start()
    try:
        worker.stdin.write(case + "\n")
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
    why = f"it took more than {limit} s" if code == -9 else f"its process ended with {code}"
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
