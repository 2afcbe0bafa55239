"""What a session holds after mixed batches: `python ci/memory.py BUNDLE [-o FILE]`, a text encoder.

The same 200 batches of 1 to 64 rows of 1 to 512 tokens in a fresh process for each way: `load(memory="flat")` and
`"fast"`, ONNX Runtime by its defaults, and calls of at most 4,096 tokens. Then what flat costs: calls of one size,
flat and fast in turn, in one process. Two threads. Prints JSON, or writes it to FILE.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

import posexport

ROOT = Path(__file__).parent.parent
WAYS = ("flat", "fast", "onnxruntime", "cut")
CALLS, ROWS, LONGEST, CUT = 200, 64, 512, 4096
SIZES = ((1, 16), (1, 128), (8, 128), (32, 128), (64, 128), (32, 512))
Feeds = dict[str, np.ndarray[Any, Any]]


def resident() -> float:
    """MB of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def feeds(lengths: np.ndarray[Any, Any], rng: np.random.Generator) -> Feeds:
    mask = (np.arange(lengths.max()) < lengths[:, None]).astype(np.int64)
    return {"input_ids": rng.integers(1000, 20000, mask.shape) * mask, "attention_mask": mask}


def held(bundle: Path, way: str, calls: int) -> dict[str, float]:
    """MB after the calls, and at most between two of them."""
    rng, most = np.random.default_rng(0), 0.0
    if way == "onnxruntime":
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 2
        bare = onnxruntime.InferenceSession(bundle / "model.onnx", options, providers=["CPUExecutionProvider"])
    else:
        session = posexport.load(bundle, threads=2, memory="fast" if way == "fast" else "flat")
    loaded = resident()
    for _ in range(calls):
        longest = int(rng.integers(1, LONGEST + 1))
        lengths = rng.integers(1, longest + 1, int(rng.integers(1, ROWS + 1)))
        while len(lengths):
            count = max(CUT // int(lengths.max()), 1) if way == "cut" else len(lengths)
            given, lengths = feeds(lengths[:count], rng), lengths[count:]
            if way == "onnxruntime":
                bare.run(None, given | {"token_type_ids": given["input_ids"] * 0})
            else:
                session.run(given)
            del given
        most = max(most, resident())
    return {"loaded": round(loaded), "after the calls": round(resident()), "at most": round(most)}


def cost(bundle: Path) -> dict[str, float]:
    """Of the time of a call with all memory kept."""
    flat, fast = (posexport.load(bundle, threads=2, memory=name) for name in ("flat", "fast"))
    found = {}
    for rows, length in SIZES:
        given = feeds(np.full(rows, length), np.random.default_rng(1))
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
    found: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True).strip(),
        "onnxruntime": onnxruntime.__version__,
        "calls": calls,
        "MB": {},
    }
    for way in WAYS:
        command = [sys.executable, __file__, str(bundle), "--calls", str(calls), "--way", way]
        found["MB"][way] = json.loads(subprocess.check_output(command))
    found["flat, of the time"] = cost(bundle)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("-o", type=Path)
    parser.add_argument("--calls", type=int, default=CALLS)
    parser.add_argument("--way", choices=WAYS)
    asked = parser.parse_args()
    result = main(asked.bundle, asked.calls) if asked.way is None else held(asked.bundle, asked.way, asked.calls)
    text = json.dumps(result, indent=1) + "\n"
    if asked.o is not None:
        asked.o.write_text(text)
    else:
        print(text)
