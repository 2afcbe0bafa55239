"""What a session holds after mixed batches: `python ci/lab/memory.py BUNDLE [-o FILE]`, a text encoder.

The same 200 batches of 1 to 64 rows of 1 to 512 tokens in a fresh process for each way: `load(memory="flat")`,
`"fast"`, as ONNX Runtime does by its defaults, and calls of at most 4,096 tokens. Then what flat costs: calls of one
size, flat and fast in turn, in one process. Two threads. Prints JSON, or writes it to FILE.
"""

import argparse
import json
import subprocess
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

import posexport
from posexport.inspect.bench.processes import run
from posexport.inspect.bench.run import CALLS
from posexport.inspect.bench.workers.mixed import Mixed

ROOT = Path(__file__).parents[2]
WAYS: dict[str, dict[str, Any]] = {"flat": {}, "fast": {"memory": "fast"}, "cut": {"cut": True}}
SIZES = ((1, 16), (1, 128), (8, 128), (32, 128), (64, 128), (32, 512))
MB = 1e6


def held(bundle: Path, calls: int, options: dict[str, Any]) -> dict[str, int]:
    job = Mixed(bundle=str(bundle), calls=calls, threads=2, **options)
    found = json.loads(run("posexport.inspect.bench.workers.mixed", [json.dumps(asdict(job))]).output.splitlines()[-1])
    return {name: round(value / MB) for name, value in found.items()}


def cost(bundle: Path) -> dict[str, float]:
    """Of the time of a call with all memory kept."""
    flat, fast = (posexport.load(bundle, threads=2, memory=name) for name in ("flat", "fast"))
    found = {}
    for rows, length in SIZES:
        given = {"input_ids": np.random.default_rng(1).integers(1000, 20000, (rows, length))}
        ratios = []
        for turn in range(max(5, 20000 // (rows * length))):
            took = []
            for session in (flat, fast) if turn % 2 else (fast, flat):
                begin = time.perf_counter()
                session.run(given)
                took.append(time.perf_counter() - begin)
            ratios.append(took[0] / took[1] if turn % 2 else took[1] / took[0])
        found[f"batch {rows}, length {length}"] = round(float(np.median(ratios[1:])), 3)
    return found


def main(bundle: Path, calls: int) -> dict[str, Any]:
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True).strip(),
        "onnxruntime": onnxruntime.__version__,
        "calls": calls,
        "MB": {way: held(bundle, calls, options) for way, options in WAYS.items()},
        "flat, of the time": cost(bundle),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("-o", type=Path)
    parser.add_argument("--calls", type=int, default=CALLS)
    asked = parser.parse_args()
    text = json.dumps(main(asked.bundle, asked.calls), indent=1) + "\n"
    if asked.o is not None:
        asked.o.write_text(text)
    else:
        print(text)
