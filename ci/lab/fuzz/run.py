"""Feeds damaged files to what reads them: ``--inputs N --seconds S --seed K``, in parts, each in a process.

Counts what was tried and lists what went wrong in ci/results/fuzz.json: exceptions other than PosexportError, processes
that end, inputs that take more than 5 seconds, files opened outside the input's folder. A number is tried once; the
next run continues after the last one, and tries again what was wrong.
"""

import argparse
import json
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from ci.lab.fuzz.kinds import KINDS

_RESULTS = Path(__file__).parents[2] / "results" / "fuzz.json"
#: seconds that an input may take, and that a process may take to start
_LONGEST, _START = 5.0, 120.0
#: inputs of a process, and the share of each kind: opening a checkpoint is fifty times slower than reading a graph
_PART = 4000
_SHARES = {"onnx": 10, "manifest": 20, "config": 1, "decoder-config": 1, "safetensors": 1, "tokenizer": 3, "bundle": 3}


def tried_range(kind: str, first: int, last: int) -> tuple[int, list[dict[str, Any]]]:
    """How many inputs of a range were tried, and what went wrong."""
    command = [sys.executable, "-m", "ci.lab.fuzz.worker", kind, str(first), str(last)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line)
        lines.put(None)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    number, wrong, limit = first - 1, [], _START
    try:
        while (line := lines.get(timeout=limit)) is not None:
            limit = _LONGEST  # it has read a sound input before
            if line.startswith("{"):
                wrong.append(json.loads(line))
            elif line.strip().isdigit():
                number = int(line)
    except queue.Empty:
        wrong.append({"kind": kind, "number": number, "what": f"takes more than {limit:g} s"})
        process.kill()
    code = process.wait()
    reader.join()
    assert process.stdout is not None
    process.stdout.close()
    if code and not (wrong and wrong[-1]["number"] == number):
        wrong.append({"kind": kind, "number": number, "what": f"the process ended with {code}"})
    return number + 1 - first, wrong


def _write(path: Path, record: dict[str, Any]) -> None:
    path.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=10_000, help="how many at most")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, help="the first number of every kind; default: behind the last run")
    parser.add_argument("--results", type=Path, default=_RESULTS)
    parser.add_argument("--kind", action="append", choices=sorted(KINDS))
    arguments = parser.parse_args()
    record = (
        json.loads(arguments.results.read_text())
        if arguments.results.exists()
        else {"tried": {}, "next": {}, "mended": 0, "wrong": []}
    )
    # what was wrong is tried again, by the code of today
    again = [tried_range(item["kind"], item["number"], item["number"] + 1)[1] for item in record["wrong"]]
    record["mended"] = record.get("mended", 0) + again.count([])
    record["wrong"] = [item for wrong in again for item in wrong]
    _write(arguments.results, record)
    following = dict(record["next"]) if arguments.seed is None else dict.fromkeys(KINDS, arguments.seed)
    end, left = time.monotonic() + arguments.seconds, arguments.inputs
    wheel = [kind for kind in arguments.kind or KINDS for _ in range(1 if arguments.kind else _SHARES[kind])]
    turn = sum(record["tried"].values()) // _PART
    while left > 0 and time.monotonic() < end:
        kind = wheel[turn % len(wheel)]
        turn += 1
        first = following.get(kind, 0)
        tried, wrong = tried_range(kind, first, first + min(_PART, left))
        if tried <= 0:
            raise SystemExit(f"{kind} tried nothing: {wrong}")
        following[kind], left = first + tried, left - tried
        record["tried"][kind] = record["tried"].get(kind, 0) + tried
        known = {(item["kind"], item["number"]) for item in record["wrong"]}
        record["wrong"] += [item for item in wrong if (item["kind"], item["number"]) not in known]
        if arguments.seed is None:
            record["next"] = following
        _write(arguments.results, record)
        for item in wrong:
            print(json.dumps(item), flush=True)
        done = sum(record["tried"].values())
        print(f"{kind} {first}-{first + tried - 1}: {len(wrong)} wrong, {done} in all", flush=True)


if __name__ == "__main__":
    main()
