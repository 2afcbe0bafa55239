"""Errors of fp16 and bf16 at rising lengths, in units of PyTorch's in the same precision with float32 positions.

Four encoders and decoders of real proportions with random weights, drawn so that scores spread over several units and
positions decide where attention looks. Beside posexport's graph stand those of the public converters, made from the
same float32 graph; all run in the same emulation. The number given is the largest error over a few rows of tokens.
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

import onnxruntime
import torch

from posexport.export import negotiate
from posexport.export.build import build
from posexport.parity.criterion import measure
from posexport.parity.grid.inputs import draw
from posexport.parity.grid.point import GridPoint
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
#: draws of tokens at a length, whose errors' largest counts: one row's worst element is chance
DRAWS = 2
#: Python of another environment (`ci/rivals/setup converters`), and the converters in it
CONVERTERS = ROOT / ".cache" / "rivals" / "converters" / "bin" / "python"
WORKER = ROOT / "ci" / "rivals" / "workers" / "half.py"
RIVALS = ("onnxruntime.transformers.float16", "onnxconverter-common")
_RMS = ("norm=pre", "norm_kind=rms", "gated=true")


@dataclass(frozen=True)
class Model:
    """A built-in model, the lengths it is measured at, and by how much parameters are larger than drawn."""

    name: str
    settings: tuple[str, ...]
    lengths: tuple[int, ...]
    larger: dict[str, float]


_LONG = (64, 256, 512, 1024, 2048, 4096)
MODELS = {
    "T5 encoder": Model(
        "encoder-t5",
        ("layers=4", "hidden=320", "heads=5", "feedforward=1024", "scaled=false", "activation=gelu", *_RMS),
        _LONG,
        # its scores are not scaled: 8 units as drawn
        {"query.weight": 0.6, "key.weight": 0.6, "table": 3},
    ),
    "MPNet": Model(
        "encoder-mpnet",
        ("layers=4", "hidden=384", "heads=12", "feedforward=1536", "max_positions=512"),
        (64, 256, 512),
        {"query.weight": 2, "key.weight": 2, "table": 3},
    ),
    "DeBERTa-v2": Model(
        "encoder-deberta",
        ("layers=4", "hidden=384", "heads=12", "feedforward=1536", "max_distance=512", "span=256"),
        (64, 256, 512),
        {"query.weight": 2, "key.weight": 2},
    ),
    "Llama": Model(
        "decoder-rope",
        ("layers=4", "hidden=320", "heads=5", "kv_heads=1", "feedforward=864", "activation=silu", *_RMS),
        _LONG,
        {"query.weight": 2, "key.weight": 2},
    ),
}


def source_of(model: Model) -> Source:
    """The model with its parameters enlarged."""
    source = prepare(model.name, LoadOptions(settings=model.settings))
    with torch.no_grad():
        for path, weight in source.module.named_parameters():
            for end, factor in model.larger.items():
                if path.endswith(end):
                    weight *= factor
    return source


def measured(model: Model, precision: str, longest: int) -> dict[str, Any]:
    """By length the errors of PyTorch and of every graph; why a converter's graph is none."""
    source = source_of(model)
    options = PrecisionOptions(name=precision)
    failures: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        half, single = Path(folder) / "half.onnx", Path(folder) / "float32.onnx"
        build(source, half, opset=18, ir_version=negotiate.IR_VERSION, precision=options)
        build(source, single, opset=18, ir_version=negotiate.IR_VERSION, inline=True)
        graphs = {"posexport": half}
        for rival in RIVALS if precision == "fp16" else ():
            path = Path(folder) / f"{rival}.onnx"
            failure = converted(rival, single, path)
            graphs, failures = (
                (graphs | {rival: path}, failures) if not failure else (graphs, {**failures, rival: failure})
            )
        lengths = [length for length in model.lengths if length <= longest]
        errors = {length: {"PyTorch": 0.0} for length in lengths}
        run_all(with_precision(source, options), graphs, single, precision, errors, failures)
    return {"errors": errors, "failures": failures}


def run_all(
    source: Source,
    graphs: dict[str, Path],
    single: Path,
    precision: str,
    errors: dict[int, dict[str, float]],
    failures: dict[str, str],
) -> None:
    """Fill ``errors``, one graph after another; a graph that does not run goes to ``failures``."""
    source = widened(source)
    truth, baseline = (
        whole(Reference(source.module, dtype, outputs=len(source.outputs)), source)
        for dtype in (torch.float64, BY_PRECISION[precision].torch)
    )
    feeds = {length: list(inputs(source, length)) for length in errors}
    exact = {length: [truth(each)[0] for each in several] for length, several in feeds.items()}
    axes = source.outputs[0].axes

    def fill(name: str, run: Any) -> None:
        for length, several in feeds.items():
            pairs = zip(several, exact[length], strict=True)
            errors[length][name] = max(measure(run(each)[0], y64, axes, None).error for each, y64 in pairs)

    fill("PyTorch", baseline)
    everything = {"rounded everywhere": (single, True)}
    for name, (path, everywhere) in ({name: (path, False) for name, path in graphs.items()} | everything).items():
        try:
            with emulated_if(precision, path, everywhere=everywhere) as copy:
                fill(name, whole(Runner.of(source, copy, threads=0), source))
        except Exception as err:  # a converter's graph may be wrong in any way
            if name == "posexport":
                raise
            failures[name] = str(err).splitlines()[0][:300]


def inputs(source: Source, length: int) -> Iterator[dict[str, Any]]:
    """Rows without padding."""
    for batch in range(1, DRAWS + 1):
        yield {name: array[-1:] for name, array in draw(GridPoint(batch=batch, length=length), source.inputs).items()}


def converted(rival: str, model: Path, path: Path) -> str:
    """The float32 graph through another converter; why not, if it fails."""
    done = subprocess.run(
        [CONVERTERS, WORKER, rival, model, path], capture_output=True, text=True, check=False, cwd=path.parent
    )
    if done.returncode:
        return done.stderr.strip().splitlines()[-1][:300]
    try:
        onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except Exception as err:  # noqa: BLE001 (ONNX Runtime raises kinds of its own)
        return f"ONNX Runtime does not load it: {str(err).splitlines()[0][:300]}"
    return ""


def main() -> int:
    """Measure what is not in the file yet; 1 where an error is over twice PyTorch's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", choices=[[], *MODELS], help="default: all")
    parser.add_argument("--longest", type=int, default=4096)
    parser.add_argument("--again", action="store_true", help="measure what is in the file already")
    arguments = parser.parse_args()
    document = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"results": {}}
    document["versions"] = {"onnxruntime": onnxruntime.__version__, "torch": torch.__version__}
    document["settings"] = {name: [each.name, *each.settings] for name, each in MODELS.items()}
    for name in arguments.models or MODELS:
        for precision in PRECISIONS:
            done = document["results"].setdefault(name, {})
            if precision not in done or arguments.again:
                done[precision] = measured(MODELS[name], precision, arguments.longest)
                RESULTS.write_text(json.dumps(document, indent=1) + "\n")
            for line in summary(done[precision]):
                print(name, precision, line, flush=True)
    return int(any(worst(each, "posexport") > 2 for both in document["results"].values() for each in both.values()))


def ratios(result: dict[str, Any], graph: str) -> dict[str, float]:
    """A graph's errors in units of PyTorch's, by length."""
    return {n: errors[graph] / errors["PyTorch"] for n, errors in result["errors"].items() if graph in errors}


def worst(result: dict[str, Any], graph: str) -> float:
    """The largest of `ratios`."""
    return max(ratios(result, graph).values(), default=float("nan"))


def summary(result: dict[str, Any]) -> Iterator[str]:
    """A line for each graph."""
    for graph in ("posexport", "rounded everywhere", *RIVALS):
        if by_length := ratios(result, graph):
            yield f"{graph}: " + ", ".join(f"{ratio:.2f} at {length}" for length, ratio in by_length.items())
    yield from (f"{graph}: {why}" for graph, why in result["failures"].items())


if __name__ == "__main__":
    sys.exit(main())
