"""What leaving padding out is worth: `python ci/padding.py KEPT DROPPED [FILE]`, two bundles of one text encoder.

KEPT is made with `--keep-padding`, DROPPED without. Sentences of Python's own documentation in batches as they come,
two threads, medians, both bundles in turn; then the same batches sorted by length, and batches without padding. Prints
JSON, or writes it to FILE.
"""

import json
import pydoc_data.topics
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

ROOT = Path(__file__).parent.parent
LONGEST, SENTENCES, ROUNDS = 256, 192, 5
Feeds = dict[str, np.ndarray[Any, Any]]


def sentences(bundle: Path) -> list[list[int]]:
    """Ids of sentences, in an order drawn with a seed."""
    tokenizer = Tokenizer.from_file(str(bundle / "tokenizer.json"))
    tokenizer.enable_truncation(LONGEST)
    tokenizer.no_padding()
    topics = pydoc_data.topics.topics.values()
    texts = [each.strip() for topic in topics for each in re.split(r"(?<=[.])\s+", topic) if len(each) > 20]
    np.random.default_rng(0).shuffle(texts)
    return [tokenizer.encode(text).ids for text in texts[:SENTENCES]]


def padded(rows: Sequence[Sequence[int]]) -> Feeds:
    """A batch, padded on the right to its longest row."""
    ids = np.zeros((len(rows), max(map(len, rows))), np.int64)
    mask = ids.copy()
    for row, tokens in enumerate(rows):
        ids[row, : len(tokens)], mask[row, : len(tokens)] = tokens, 1
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": ids * 0}


def session(bundle: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(str(bundle / "model.onnx"), options, providers=["CPUExecutionProvider"])


def medians(sessions: Sequence[onnxruntime.InferenceSession], batches: Sequence[Feeds], rounds: int) -> list[float]:
    """Seconds of each session for all batches: of each batch the median of ``rounds``."""
    total = [0.0] * len(sessions)
    for feeds in batches:
        times: list[list[float]] = [[] for _ in sessions]
        for turn in range(rounds + 1):
            for each, spent in zip(sessions, times, strict=True):
                given = {value.name: feeds[value.name] for value in each.get_inputs()}
                begin = time.perf_counter()
                each.run(None, given)
                if turn:
                    spent.append(time.perf_counter() - begin)
        total = [so_far + float(np.median(spent)) for so_far, spent in zip(total, times, strict=True)]
    return total


def main(kept: Path, dropped: Path) -> dict[str, Any]:
    sessions, rows = [session(kept), session(dropped)], sentences(kept)
    found: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True).strip(),
        "onnxruntime": onnxruntime.__version__,
        "rounds": ROUNDS,
    }
    for size in (8, 32):
        batches = [padded(rows[start : start + size]) for start in range(0, len(rows), size)]
        real = sum(feeds["attention_mask"].sum() for feeds in batches)
        before, after = medians(sessions, batches, ROUNDS)
        in_order = sorted(rows, key=len)
        by_length = [padded(in_order[start : start + size]) for start in range(0, len(rows), size)]
        sorted_before, _ = medians(sessions, by_length, ROUNDS)
        found[f"batch {size}"] = {
            "real tokens": round(float(real / sum(feeds["attention_mask"].size for feeds in batches)), 3),
            "times as fast": round(before / after, 2),
            "times as fast as sorted by length with padding": round(sorted_before / after, 2),
        }
    for batch, length in ((1, 16), (4, 16), (32, 16), (1, 128), (4, 128), (32, 128), (1, 512), (4, 512)):
        row = np.random.default_rng(1).integers(1000, 20000, length).tolist()
        before, after = medians(sessions, [padded([row] * batch)], max(ROUNDS, 4000 // (batch * length)))
        found[f"no padding, batch {batch}, length {length}"] = {"of the time": round(after / before, 3)}
    return found


if __name__ == "__main__":
    text = json.dumps(main(Path(sys.argv[1]), Path(sys.argv[2])), indent=1) + "\n"
    if len(sys.argv) > 3:
        Path(sys.argv[3]).write_text(text)
    else:
        print(text)
