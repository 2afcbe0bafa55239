"""Errors of fp16 and bf16 at rising lengths, in units of PyTorch's in the same precision with float32 positions.

Four checkpoints of real proportions, with random weights whose attention looks at positions
(``ci/rivals/workers/random_checkpoints.py``). posexport's graph beside those that public converters make of optimum's
float32 graph: in emulation, every operator's output rounded, and as ONNX Runtime's CPU provider runs the file, which
computes in float32 between casts. A number is the largest error over a few rows of tokens.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import onnxruntime
import torch

from posexport.bench.machine import commit, machine
from posexport.export import negotiate
from posexport.export.build import build
from posexport.parity.criterion import measure
from posexport.parity.foreign.fit import fit
from posexport.parity.foreign.runner import ForeignRunner
from posexport.parity.foreign.signature import signature
from posexport.parity.grid.inputs import Feeds, draw
from posexport.parity.grid.point import GridPoint
from posexport.parity.halves import half
from posexport.parity.run.calls import whole
from posexport.parity.run.emulation import emulated_if, widened
from posexport.parity.run.reference import Reference
from posexport.parity.run.subject import Runner
from posexport.precision.half.ports import with_precision
from posexport.sources.prepare import prepare
from posexport.sources.resolve import LoadOptions
from posexport.sources.source import Source
from posexport.targets.dtypes import BY_PRECISION
from posexport.targets.precision_options import PrecisionOptions

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "ci" / "results" / "half.json"
PRECISIONS = ("fp16", "bf16")
#: rows of tokens at a length, whose errors' largest counts: one row's worst element is chance
DRAWS = 2
#: Python in the environments of `ci/rivals/setup`, and what runs there (``-P``: beside a file called transformers.py)
RIVALS = ROOT / ".cache" / "rivals"
WORKERS = ROOT / "ci" / "rivals" / "workers"
#: they know float16 only
CONVERTERS = ("onnxruntime.transformers.float16", "onnxconverter-common")
POSEXPORT, AS_RUN = "posexport", ", on CPU"


@dataclass(frozen=True)
class Model:
    """``checkpoint``: its name there; ``graph``: optimum's; the lengths it is measured at."""

    checkpoint: str
    graph: str
    lengths: tuple[int, ...]


_LONG = (64, 256, 512, 1024, 2048, 4096)
MODELS = {
    "T5 encoder": Model("t5", "encoder_model.onnx", _LONG),
    "MPNet": Model("mpnet", "model.onnx", (64, 256, 512)),
    "DeBERTa-v2": Model("deberta-v2", "model.onnx", (64, 256, 512)),
    "Llama": Model("llama", "model.onnx", _LONG),
}


def measured(model: Model, checkpoints: Path, precision: str, longest: int) -> dict[str, Any]:
    """By length the errors of PyTorch and of every graph; why a converter's graph is none."""
    checkpoint = checkpoints / model.checkpoint
    theirs = checkpoint / "onnx" / model.graph
    loaded = prepare(str(checkpoint), LoadOptions())
    source = half(loaded, signature(theirs))
    options = PrecisionOptions(precision=precision)
    found: dict[str, Any] = {"errors": {}, "failures": {}}
    with tempfile.TemporaryDirectory() as folder:
        own = Path(folder) / "half.onnx"
        build(source, own, opset=18, ir_version=negotiate.IR_VERSION, precision=options)
        source = widened(with_precision(source, options))
        feeds = {length: list(rows(source, length)) for length in model.lengths if length <= longest}
        truth = whole(Reference(source.module, torch.float64, outputs=len(source.outputs)), source)
        exact = {length: [truth(each)[0] for each in several] for length, several in feeds.items()}

        def record(name: str, run: Any) -> None:
            axes = source.outputs[0].axes
            for length, several in feeds.items():
                pairs = zip(several, exact[length], strict=True)
                error = max(measure(run(each)[0], y64, axes, None).error for each, y64 in pairs)
                found["errors"].setdefault(length, {})[name] = error

        dtype = BY_PRECISION[precision].torch
        record("PyTorch", whole(Reference(source.module, dtype, outputs=len(source.outputs)), source))
        with emulated_if(precision, own) as copy:
            record(POSEXPORT, whole(Runner.of(source, copy, []), source))
        if precision == "fp16":
            record(POSEXPORT + AS_RUN, whole(Runner.of(source, own, []), source))
            for converter in CONVERTERS:
                path = Path(folder) / f"{converter}.onnx"
                if failure := converted(converter, theirs, path):
                    found["failures"][converter] = failure
                    continue
                foreign = fit(loaded, signature(path), path.name)
                for name, emulation in ((converter, precision), (converter + AS_RUN, None)):
                    with emulated_if(emulation, path) as copy:
                        run = whole(ForeignRunner(foreign, copy), foreign.source)
                        taken = [spec.name for spec in foreign.source.inputs]
                        record(name, lambda each, run=run, taken=taken: run({name: each[name] for name in taken}))
    return found


def rows(source: Source, length: int) -> Iterator[Feeds]:
    """A row without padding, several times."""
    for batch in range(1, DRAWS + 1):
        yield {name: array[-1:] for name, array in draw(GridPoint(batch=batch, length=length), source.inputs).items()}


def converted(converter: str, model: Path, path: Path) -> str:
    """The float32 graph in float16 by ``converter``; why not, if it fails."""
    python = RIVALS / "converters" / "bin" / "python"
    done = subprocess.run(
        [python, "-P", WORKERS / "half.py", converter, model, path], capture_output=True, text=True, check=False
    )
    if done.returncode:
        return done.stderr.strip().splitlines()[-1][:300]
    try:
        onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except Exception as err:  # noqa: BLE001 (ONNX Runtime raises kinds of its own)
        return f"ONNX Runtime does not load it: {str(err).splitlines()[0].replace(str(path), path.name)[:300]}"
    return ""


def main() -> int:
    """Measure what is not in the file yet; 1 where an error of posexport's is over twice PyTorch's."""
    parser = argparse.ArgumentParser(prog="ci/half", description=__doc__)
    parser.add_argument("models", nargs="*", choices=[[], *MODELS], help="default: all")
    parser.add_argument("--longest", type=int, default=4096)
    parser.add_argument("--again", action="store_true", help="measure what is in the file already")
    arguments = parser.parse_args()
    document = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"results": {}}
    with tempfile.TemporaryDirectory() as folder:
        python = RIVALS / "optimum" / "bin" / "python"
        for name in arguments.models or MODELS:
            done = document["results"].setdefault(name, {})
            for precision in PRECISIONS:
                if precision in done and not arguments.again:
                    continue
                if not (Path(folder) / MODELS[name].checkpoint).exists():
                    worker = [python, "-P", WORKERS / "random_checkpoints.py", folder, MODELS[name].checkpoint]
                    subprocess.run(worker, check=True, capture_output=True)
                done[precision] = measured(MODELS[name], Path(folder), precision, arguments.longest)
                document |= {"commit": commit(), "machine": msgspec.to_builtins(machine())}
                RESULTS.write_text(json.dumps(document, indent=1) + "\n")
                for line in summary(done[precision]):
                    print(name, precision, line, flush=True)
    return int(any(max(ratios(each, POSEXPORT)) > 2 for both in document["results"].values() for each in both.values()))


def ratios(result: dict[str, Any], graph: str) -> list[float]:
    """A graph's errors in units of PyTorch's, from the shortest length to the longest."""
    return [errors[graph] / errors["PyTorch"] for errors in result["errors"].values() if graph in errors]


def summary(result: dict[str, Any]) -> Iterator[str]:
    """A line for each graph."""
    for graph in next(iter(result["errors"].values())):
        pairs = zip(result["errors"], ratios(result, graph), strict=True)
        yield f"{graph}: " + ", ".join(f"{ratio:.2f} at {length}" for length, ratio in pairs)
    yield from (f"{graph}: {why}" for graph, why in result["failures"].items())


if __name__ == "__main__":
    sys.exit(main())
