"""What leaving padding out of a decoder's prefill is worth: `python ci/lab/padding_decoder.py KEPT DROPPED [-o FILE]`.

KEPT and DROPPED are bundles of one decoder with a dynamic cache, KEPT made with `--no-unpad`. Prompts of a batch
are padded on the left; then prefills without padding, and cached steps. One thread and its CPU time, as then others on
the machine matter least; all sessions in turn, call by call, with a second one of KEPT: what that differs by is noise.
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

#: real tokens of each row of a batch
PROMPTS = {"batch 8": (128, 60, 40, 30, 30, 20, 20, 10), "batch 2": (64, 32), "batch 4": (32, 31, 30, 32)}
#: rows and tokens
FULL = ((1, 16), (1, 64), (4, 64), (4, 128))
#: rows and past tokens
STEPS = ((1, 16), (1, 128), (8, 64))
Feeds = dict[str, np.ndarray[Any, Any]]


def session(bundle: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    options.add_session_config_entry("session.set_denormal_as_zero", "1")
    return onnxruntime.InferenceSession(str(bundle / "model.onnx"), options, providers=["CPUExecutionProvider"])


def feeds(graph: onnxruntime.InferenceSession, lengths: Sequence[int], past: int) -> Feeds:
    """Random tokens, ``lengths`` of them real in the rows, behind ``past`` random keys and values."""
    draw, batch, longest = np.random.default_rng(0), len(lengths), max(lengths)
    new = np.arange(longest) >= longest - np.asarray(lengths)[:, None]
    given: Feeds = {
        "input_ids": draw.integers(0, 1000, new.shape),
        "attention_mask": np.concatenate([np.ones((batch, past), bool), new], 1).astype(np.int64),
    }
    for value in graph.get_inputs():
        if value.name not in given:
            _, heads, _, size = value.shape
            given[value.name] = draw.standard_normal((batch, heads, past, size)).astype(np.float32)
    return given


def compare(sessions: Sequence[onnxruntime.InferenceSession], given: Feeds, seconds: float) -> dict[str, float]:
    """Milliseconds of KEPT, of the time that DROPPED takes, and that KEPT again does; so long in all."""
    times: list[list[float]] = [[] for _ in sessions]
    end, turn = time.monotonic() + seconds, 0
    while time.monotonic() < end or turn < 7:
        for place in np.roll(range(len(sessions)), turn):
            begin = time.process_time()
            sessions[place].run(None, given)
            times[place].append(time.process_time() - begin)
        turn += 1
    kept, dropped, again = (float(np.median(each[1:])) for each in times)
    return {"ms": round(kept * 1000, 3), "of the time": round(dropped / kept, 3), "noise": round(again / kept, 3)}


def main(kept: Path, dropped: Path, seconds: float) -> dict[str, Any]:
    sessions = [session(kept), session(dropped), session(kept)]
    found: dict[str, Any] = {"onnxruntime": onnxruntime.__version__}
    for name, lengths in PROMPTS.items():
        real = round(sum(lengths) / len(lengths) / max(lengths), 2)
        found[f"{name}, {real} real tokens"] = compare(sessions, feeds(sessions[0], lengths, 0), seconds)
    for batch, length in FULL:
        given = feeds(sessions[0], [length] * batch, 0)
        found[f"no padding, batch {batch}, length {length}"] = compare(sessions, given, seconds)
    for batch, past in STEPS:
        found[f"step, batch {batch}, past {past}"] = compare(sessions, feeds(sessions[0], [1] * batch, past), seconds)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kept", type=Path)
    parser.add_argument("dropped", type=Path)
    parser.add_argument("--seconds", type=float, default=10, help="of each comparison")
    parser.add_argument("-o", type=Path)
    asked = parser.parse_args()
    text = json.dumps(main(asked.kept, asked.dropped, asked.seconds), indent=1) + "\n"
    if asked.o is not None:
        asked.o.write_text(text)
    else:
        print(text)
