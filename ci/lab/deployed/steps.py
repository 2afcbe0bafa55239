"""A prompt and decode steps of a deployed shape beside onnxruntime-genai's own graph of the same checkpoint.

Both graphs have a static cache and are called alternately in one process, with one thread. A graph that is loaded later
may take 0.9 of the time that it takes when it is loaded first, so each order of loading has a process of its own.
ci/results/steps.json has a row for each precision and each number of tokens before the steps.
"""

import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from ci.lab.deployed.measure import ROOT, commands
from posexport.inspect.bench.run import commit, machine

RECORD = ROOT / "ci" / "results" / "steps.json"
#: what says which row it is
_KEY = ("shape", "precision", "past")
#: slots of the cache, rounds of alternate calls, and steps of a round, of which the median counts
_SLOTS, _ROUNDS, _STEPS = 2560, 12, 7
#: whose graphs are compared, ours first
_BOTH = ("posexport", "onnxruntime-genai")
#: logits in 4 bits, as the builder makes them
_OPTIONS = {"int4": ["--head-bits", "4"]}


def measure(name: str, checkpoint: Path, precisions: Sequence[str], pasts: Sequence[int], graphs: Path) -> None:
    """Convert ``checkpoint`` by both where ``graphs`` has no result yet, and measure each number of tokens."""
    config = json.loads((checkpoint / "config.json").read_text())
    size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    heads = config["num_key_value_heads"], size
    for precision in precisions:
        folders = [
            _graph(checkpoint, graphs / f"{name}-{precision}-{exporter}", precision, exporter) for exporter in _BOTH
        ]
        nodes = [_run([folder], heads, 1, profile=True)["nodes"] for folder in folders]
        for past in pasts:
            row: dict[str, Any] = {"shape": name, "precision": precision, "past": past, "nodes": nodes}
            orders = [(order, _run(order, heads, past)) for order in permutations(folders)]
            for what in ("step", "prompt"):
                times = [dict(zip(order, result[what], strict=True)) for order, result in orders]
                row[f"{what}_ratios"] = [round(found[folders[0]] / found[folders[1]], 3) for found in times]
                row[f"{what}_ms"] = [round(float(np.mean([found[folder] for found in times])), 1) for folder in folders]
            row |= {"cpu": machine().cpu, "load": round(machine().load, 1), "commit": commit()}
            row["date"] = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
            print(json.dumps(row), flush=True)
            _record(row)


def _graph(checkpoint: Path, folder: Path, precision: str, exporter: str) -> Path:
    if not (folder / "model.onnx").exists():
        command = commands(checkpoint, folder, precision, "")[exporter]
        if exporter == "posexport":
            static = ["--cache", "static", "--max-length", str(_SLOTS)]
            command += ["--target", "cpu", "--no-verify", *static, *_OPTIONS.get(precision, [])]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return folder


def _run(folders: Sequence[Path], heads: tuple[int, int], past: int, *, profile: bool = False) -> dict[str, Any]:
    """What a process measures that loads the graphs in this order."""
    names = [str(folder) for folder in folders]
    command = [sys.executable, "-m", "ci.lab.deployed.steps", *map(str, (past, int(profile), *heads)), *names]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    said = subprocess.run(command, env=environment, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    result: dict[str, Any] = json.loads(said.splitlines()[-1])
    return result


class _Reader:
    """A graph with its static cache of KV heads of a size, one row."""

    def __init__(self, folder: Path, heads: int, size: int, profile: str = "") -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 3
        if profile:
            options.enable_profiling, options.profile_file_prefix = True, profile
        self.session = onnxruntime.InferenceSession(folder / "model.onnx", options, providers=["CPUExecutionProvider"])
        self.binding, self.done = self.session.io_binding(), 0
        self.names = {spec.name for spec in self.session.get_inputs()}
        for spec in self.session.get_inputs():
            if spec.name.startswith("past"):
                empty = np.zeros((1, heads, _SLOTS, size), np.float32)
                held = onnxruntime.OrtValue.ortvalue_from_numpy(empty)
                self.binding.bind_ortvalue_input(spec.name, held)
                self.binding.bind_ortvalue_output(spec.name.replace("past_key_values", "present"), held)

    def read(self, ids_1T: NDArray[np.int64]) -> float:
        """Seconds of processor time of a call."""
        new, total = ids_1T.shape[1], self.done + ids_1T.shape[1]
        self.binding.bind_cpu_input("input_ids", ids_1T)
        self.binding.bind_cpu_input("attention_mask", np.ones((1, total), np.int64))
        for name, value in (("position_ids", np.arange(self.done, total)[None]), ("num_logits_to_keep", np.array(1))):
            if name in self.names:
                self.binding.bind_cpu_input(name, value)
        self.binding.bind_output("logits", "cpu")
        began = time.process_time()
        self.session.run_with_iobinding(self.binding)
        self.done += new
        return time.process_time() - began


def _measured(folders: Sequence[Path], heads: tuple[int, int], past: int) -> dict[str, list[float]]:
    """Milliseconds of a prompt of ``past`` tokens and of a step after it, by graph."""
    rng = np.random.default_rng(0)
    readers = [_Reader(folder, *heads) for folder in folders]
    prompt = rng.integers(0, 30_000, (1, past))
    prompts = []
    for reader in [*readers, *readers]:  # the first call of a graph reads its weights
        reader.done = 0
        prompts.append(1e3 * reader.read(prompt))
    prompts = prompts[len(readers) :]
    steps: list[list[float]] = [[] for _ in readers]
    for _ in range(_ROUNDS):
        for reader, found in zip(readers, steps, strict=True):
            reader.done = past
            times = [reader.read(rng.integers(0, 30_000, (1, 1))) for _ in range(1 + _STEPS)]
            found.append(float(np.median(times[1:])))
    return {"prompt": prompts, "step": [1e3 * float(np.median(found)) for found in steps]}


def _nodes(folder: Path, heads: tuple[int, int]) -> int:
    """How many nodes a step executes."""
    with tempfile.TemporaryDirectory() as made:
        reader = _Reader(folder, *heads, f"{made}/profile")
        for _ in range(3):
            reader.read(np.ones((1, 1), np.int64))
        events = json.loads(Path(reader.session.end_profiling()).read_text())
    began = max(event["ts"] for event in events if event["name"] == "model_run")
    return sum(
        event["cat"] == "Node" and event["name"].endswith("_kernel_time") and event["ts"] >= began for event in events
    )


def _record(row: dict[str, Any]) -> None:
    rows = json.loads(RECORD.read_text()) if RECORD.exists() else []
    kept = [old for old in rows if any(old[key] != row[key] for key in _KEY)]
    kept = sorted([*kept, row], key=lambda each: tuple(each[key] for key in _KEY))
    RECORD.write_text("[\n" + ",\n".join(json.dumps(each) for each in kept) + "\n]\n")


def table() -> str:
    """A line for each shape and precision, and its ratios to onnxruntime-genai's graph at each number of tokens."""
    rows = json.loads(RECORD.read_text()) if RECORD.exists() else []
    if not rows:
        return "Not measured yet: `ci/lab/shapes steps`."
    lines = [
        "| | tokens before | nodes of a step (genai's) | prompt | step | ms of a step (genai's) |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        ratios = [_mean(row[f"{what}_ratios"]) for what in ("prompt", "step")]
        ours, theirs = row["nodes"]
        ms = "{} ({})".format(*row["step_ms"])
        lines.append(
            f"| {row['shape']}, {row['precision']} | {row['past']} | {ours} ({theirs}) | {' | '.join(ratios)} | {ms} |"
        )
    commits, dates, cpus = (", ".join(sorted({row[key] for row in rows})) for key in ("commit", "date", "cpu"))
    return "\n".join(
        [*lines, "", f"{cpus}, one thread; ONNX Runtime {onnxruntime.__version__}; commits {commits}; {dates}."]
    )


def _mean(ratios: Sequence[float]) -> str:
    """The geometric mean, and each order's in brackets."""
    return f"{float(np.exp(np.mean(np.log(ratios)))):.2f} ({', '.join(f'{ratio:.2f}' for ratio in ratios)})"


if __name__ == "__main__":
    tokens, with_profile, count, width = map(int, sys.argv[1:5])
    at = [Path(path) for path in sys.argv[5:]]
    of = count, width
    print(json.dumps({"nodes": _nodes(at[0], of)} if with_profile else _measured(at, of, tokens)))
