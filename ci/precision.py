"""fp16 and bf16 of every encoding: verdicts, and errors by length in units of PyTorch's in the same precision.

Random weights look at all tokens alike, so that wrong positions hardly change an output. Here queries and keys have
twice the weights: a graph whose positions are in half precision too (``naive``, for comparison) then shows it.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import posexport
from posexport.bundle.manifest import model_of
from posexport.export import negotiate
from posexport.export.build import build
from posexport.parity.criterion import measure
from posexport.parity.grid import memory
from posexport.parity.grid.inputs import draw
from posexport.parity.grid.point import GridPoint
from posexport.parity.prove import prove
from posexport.parity.run.calls import whole
from posexport.parity.run.emulation import emulated_if, widened
from posexport.parity.run.reference import Reference
from posexport.parity.run.setup import heads_of
from posexport.parity.run.subject import Runner
from posexport.precision.half.ports import with_precision
from posexport.sources.builtin import models
from posexport.sources.prepare import prepare
from posexport.sources.resolve import LoadOptions
from posexport.sources.source import Source
from posexport.spec import ENCODER_SEQUENCE, SEQUENCE
from posexport.targets.dtypes import BY_PRECISION
from posexport.targets.precision_options import PrecisionOptions

RESULTS = Path(__file__).parent / "results" / "precision.json"
PRECISIONS = ("fp16", "bf16")
#: of the proof: batches of 1 and 3, all paddings, invariants
PROVEN = (17,)
#: alone, without padding
MEASURED = (64, 257)
SETTINGS = (("layers=1", "hidden=60", "heads=5", "max_positions=8192"), ("layers=1", "hidden=60", "heads=5"), ())
#: by how much queries and keys are larger than drawn
SHARPER = 2


def names() -> list[str]:
    """One model for every encoding, and every kind of model once."""
    chosen: dict[str, str] = {}
    kinds: dict[str, str] = {}
    for name, (kind, encoding) in models().items():
        chosen.setdefault(encoding, name)
        kinds.setdefault(kind.name, name)
    return list(
        dict.fromkeys([*chosen.values(), *kinds.values(), "decoder-rope", "decoder-alibi", "encoder-decoder-t5"])
    )


def source_of(name: str) -> Source:
    """The model, small, with attention that distinguishes tokens."""
    for settings in SETTINGS:
        try:
            source = prepare(name, LoadOptions(settings=settings))
            break
        except posexport.PosexportError:
            if not settings:
                raise
    with torch.no_grad():
        for path, weight in source.module.named_parameters():
            if path.endswith(("query.weight", "key.weight")):
                weight *= SHARPER
    return source


def measured(name: str, precision: str, longest: int) -> dict[str, Any]:
    """Verdict and errors of one model in one precision."""
    options = PrecisionOptions(precision=precision)
    source = source_of(name)
    with tempfile.TemporaryDirectory() as folder:
        made = dict.fromkeys(("half", "float32"))
        for kind, chosen in (("half", options), ("float32", PrecisionOptions())):
            directory = Path(folder) / kind
            directory.mkdir()
            for file, graph in source.graphs.items():
                build(graph, directory / file, opset=18, ir_version=negotiate.IR_VERSION, precision=chosen)
            made[kind] = model_of(directory, source.parts)
        half = with_precision(source, options)
        varies = any(SEQUENCE in spec.axes for spec in source.inputs) and not source.plan.images
        lengths = [n for n in PROVEN if not source.envelope.limit or n <= source.envelope.limit] if varies else None
        report = prove(half, made["half"], precision=precision, lengths=lengths)
        result = {"verdict": "passed" if report.passed else report.describe(), "lengths": {}}
        if varies:
            result["lengths"] = dict(by_length(half, made, precision, longest))
    return result


def by_length(
    source: Source, made: dict[str, Any], precision: str, longest: int
) -> Iterator[tuple[int, dict[str, float]]]:
    """Errors of PyTorch, of the graph in emulation, and of the float32 graph rounded everywhere."""
    source = widened(source)
    parts = [part.spec for part in source.parts]
    outputs = len(source.outputs)
    truth, baseline = (
        whole(Reference(source.module, dtype, outputs=outputs), source)
        for dtype in (torch.float64, BY_PRECISION[precision].torch)
    )
    with (
        emulated_if(precision, made["half"], parts) as graph,
        emulated_if(precision, made["float32"], parts, everywhere=True) as naive,
    ):
        runs = {"torch": baseline}
        runs |= {
            key: whole(Runner.of(source, model, parts), source) for key, model in (("half", graph), ("naive", naive))
        }
        for length in (*MEASURED, longest):
            memory_length = length if any(ENCODER_SEQUENCE in spec.axes for spec in source.inputs) else None
            convolutions = tuple(source.envelope.convolutions)
            point = GridPoint(batch=1, length=length, memory=memory_length, convolutions=convolutions)
            too_long = source.envelope.limit is not None and length > source.envelope.limit
            needed = memory.needed(point, source.outputs, heads_of(source.module))
            if too_long or length < source.envelope.minimum or needed > memory.available() * memory.SHARE:
                continue
            feeds = draw(point, source.inputs)
            y64 = truth(feeds)[0]
            axes = source.outputs[0].axes
            yield length, {key: measure(run(feeds)[0], y64, axes, None).error for key, run in runs.items()}


def main() -> int:
    """Measure what is not in the file yet; 1 where a proof failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", help="built-in models; default: one for every encoding and kind")
    parser.add_argument("--longest", type=int, default=4096)
    parser.add_argument("--again", action="store_true", help="measure what is in the file already")
    arguments = parser.parse_args()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in arguments.models or names():
        for precision in PRECISIONS:
            done = results.setdefault(name, {})
            if precision in done and not arguments.again:
                continue
            try:
                done[precision] = measured(name, precision, arguments.longest)
            except posexport.PosexportError as err:
                done[precision] = {"verdict": f"refused: {err}", "lengths": {}}
            print(name, precision, summary(done[precision]), flush=True)
            RESULTS.write_text(json.dumps(dict(sorted(results.items())), indent=1) + "\n")
    return int(any(each["verdict"] != "passed" for both in results.values() for each in both.values()))


def summary(result: dict[str, Any]) -> str:
    """A line: verdict, and by length the graph's and the naive graph's error in units of PyTorch's."""
    ratios = (
        f"{length}: {errors['half'] / errors['torch']:.2g} (naive {errors['naive'] / errors['torch']:.2g})"
        for length, errors in result["lengths"].items()
    )
    return "; ".join([result["verdict"], *ratios])


if __name__ == "__main__":
    sys.exit(main())
