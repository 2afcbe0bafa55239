"""One bundle on the stand-in device, in a process of its own."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from libraries import libraries
from record import Call
from worker import Job, Size

#: seconds for all calls of a bundle
LIMIT = 300
_ROOT = Path(__file__).parents[3]


class DryRunError(Exception):
    """Why there is no record of any call."""


def dry_run(
    bundle: Path, compute: int, calls: Mapping[str, Size], captured: Sequence[str] = ()
) -> dict[str, dict[str, Call]]:
    """What each of the bundle's graphs does in each call on a card of that compute capability.

    Raises DryRunError where the process ends without an answer, and with ONNX Runtime's reason where a graph does not
    open.
    """
    return _answer(Job(str(bundle), str(libraries()), dict(calls), list(captured)), compute)


def dry_run_file(path: Path, compute: int, values: Mapping[str, int]) -> Call:
    """The same for one call of an ONNX file of fixed shapes, on zeros and the ``values`` of its integers."""
    (calls,) = _answer(Job(str(path), str(libraries()), {}, values=dict(values)), compute).values()
    return calls["call"]


def _answer(asked: Job, compute: int) -> dict[str, dict[str, Call]]:
    with tempfile.TemporaryDirectory(prefix="posexport-") as work:
        job, answer = Path(work, "job.json"), Path(work, "answer.json")
        job.write_bytes(msgspec.json.encode(asked))
        environment = {
            **os.environ,
            "LD_LIBRARY_PATH": asked.libraries,
            "DRYRUN_COMPUTE": str(compute),
            "PYTHONPATH": str(_ROOT),
        }
        command = [sys.executable, str(Path(__file__).with_name("worker.py")), str(job), str(answer)]
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=False, timeout=LIMIT, cwd=work
            )
        except subprocess.TimeoutExpired as err:
            raise DryRunError(f"not done after {LIMIT} s") from err
        if not answer.exists():
            raise DryRunError(f"the process ended with {done.returncode}: {done.stderr[-300:]}")
        content = msgspec.json.decode(answer.read_bytes())
    if "error" in content:
        raise DryRunError(content["error"])
    return msgspec.convert(content["graphs"], dict[str, dict[str, Call]])
