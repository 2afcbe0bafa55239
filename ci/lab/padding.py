"""What leaving padding out is worth: `python ci/lab/padding.py KEPT DROPPED [--int8 DIR] [--rival FILE] [-o FILE]`.

KEPT and DROPPED are bundles of one text encoder, KEPT made with `--no-unpad`; --int8 is one in int8 that drops
padding, --rival another tool's float32 graph. Sentences of Python's own documentation in batches as they come, and
sorted by length; then batches without padding. Two threads; everything that is compared in turn, call by call. Prints
JSON, or writes it to FILE. `--sentences 96 --rounds 3` is enough for a model of BERT's size.
"""

import argparse
import json
import pydoc_data.topics
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

ROOT = Path(__file__).parents[2]
LONGEST = 256
FULL = ((1, 16), (4, 16), (32, 16), (1, 128), (4, 128), (32, 128), (1, 512), (4, 512))
Feeds = dict[str, np.ndarray[Any, Any]]
Session = onnxruntime.InferenceSession


def sentences(bundle: Path, count: int) -> list[list[int]]:
    """Ids of so many sentences, in an order drawn with a seed."""
    tokenizer = Tokenizer.from_file(str(bundle / "tokenizer.json"))
    tokenizer.enable_truncation(LONGEST)
    tokenizer.no_padding()
    topics = pydoc_data.topics.topics.values()
    texts = [each.strip() for topic in topics for each in re.split(r"(?<=[.])\s+", topic) if len(each) > 20]
    np.random.default_rng(0).shuffle(texts)
    return [tokenizer.encode(text).ids for text in texts[:count]]


def batches(rows: Sequence[Sequence[int]], size: int) -> list[Feeds]:
    """Rows as they come, padded on the right to the longest of their batch."""
    return [_padded(rows[start : start + size]) for start in range(0, len(rows), size)]


def _padded(rows: Sequence[Sequence[int]]) -> Feeds:
    ids = np.zeros((len(rows), max(map(len, rows))), np.int64)
    mask = ids.copy()
    for row, tokens in enumerate(rows):
        ids[row, : len(tokens)], mask[row, : len(tokens)] = tokens, 1
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": ids * 0}


def _real(given: Sequence[Feeds]) -> float:
    """The share of tokens that are no padding."""
    masks = [feeds["attention_mask"] for feeds in given]
    return round(float(sum(each.sum() for each in masks) / sum(each.size for each in masks)), 3)


def session(graph: Path) -> Session:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.set_denormal_as_zero", "1")
    return Session(str(graph), options, providers=["CPUExecutionProvider"])


def seconds(work: Mapping[str, tuple[Session, Sequence[Feeds]]], rounds: int) -> dict[str, float]:
    """Of each, the sum over its batches of the median of ``rounds`` calls; one call of each in turn."""
    times: dict[str, list[list[float]]] = {name: [[] for _ in each[1]] for name, each in work.items()}
    for place in range(max(len(each[1]) for each in work.values())):
        for turn in range(rounds + 1):
            for name, (graph, given) in work.items():
                feeds = {value.name: given[place][value.name] for value in graph.get_inputs()}
                begin = time.perf_counter()
                graph.run(None, feeds)
                if turn:
                    times[name][place].append(time.perf_counter() - begin)
    return {name: float(sum(np.median(each) for each in spent)) for name, spent in times.items()}


def main(
    kept: Path, dropped: Path, int8: Path | None, rival: Path | None, *, count: int, rounds: int
) -> dict[str, Any]:
    before, after, rows = session(kept / "model.onnx"), session(dropped / "model.onnx"), sentences(kept, count)
    more = {"int8": int8 and int8 / "model.onnx", "rival": rival}
    others = {name: session(path) for name, path in more.items() if path is not None}
    found: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True).strip(),
        "onnxruntime": onnxruntime.__version__,
        "sentences": count,
        "rounds": rounds,
    }
    for size in (8, 32):
        as_they_come, by_length = batches(rows, size), batches(sorted(rows, key=len), size)
        work = {name: (each, as_they_come) for name, each in {"kept": before, "dropped": after, **others}.items()}
        took = seconds(work | {"kept, sorted": (before, by_length), "dropped, sorted": (after, by_length)}, rounds)
        found[f"batch {size}"] = {
            "real tokens": _real(as_they_come),
            "real tokens, sorted": _real(by_length),
            "times as fast": round(took["kept"] / took["dropped"], 2),
            "times as fast as sorted by length with padding": round(took["kept, sorted"] / took["dropped"], 2),
            "both sorted, times as fast": round(took["kept, sorted"] / took["dropped, sorted"], 2),
        }
        if len(others) == 2:
            ratio = round(took["rival"] / took["int8"], 2)
            found[f"batch {size}"]["int8, times as fast as the other tool's float32 graph"] = ratio
    for batch, length in FULL:
        full = [_padded([np.random.default_rng(1).integers(1000, 20000, length).tolist()] * batch)]
        took = seconds({"kept": (before, full), "dropped": (after, full)}, max(4 * rounds, 8000 // (batch * length)))
        found[f"no padding, batch {batch}, length {length}"] = {"of the time": round(took["dropped"] / took["kept"], 3)}
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kept", type=Path)
    parser.add_argument("dropped", type=Path)
    for name in ("--int8", "--rival", "-o"):
        parser.add_argument(name, type=Path)
    for name, default in (("--sentences", 192), ("--rounds", 5)):
        parser.add_argument(name, type=int, default=default)
    asked = parser.parse_args()
    models = asked.kept, asked.dropped, asked.int8, asked.rival
    text = json.dumps(main(*models, count=asked.sentences, rounds=asked.rounds), indent=1) + "\n"
    if asked.o is not None:
        asked.o.write_text(text)
    else:
        print(text)
