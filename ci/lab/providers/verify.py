"""Verifies a bundle by its stored sample in a provider's environment, and prints one line of JSON.

    python ci/lab/providers/verify.py PROVIDER BUNDLE [--guard]
    python ci/lab/providers/verify.py PROVIDER BUNDLE --precision bf16 --against SOURCE --length N ...

``--precision``: of sessions on float32 graphs, proven against SOURCE, which needs PyTorch. ``--guard``: at every
optimisation level too, whether an input longer than the table is refused, and whether ``position_ids`` beyond it are,
if they are an input.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

import posexport
from posexport.base.targets.precisions import PRECISIONS
from posexport.errors import PosexportError
from posexport.proof.grid.inputs import draw
from posexport.proof.grid.point import GridPoint
from posexport.proof.sample.writer import read
from posexport.run.bundle.manifest import MODEL, SAMPLE
from posexport.run.bundle.read import read as read_manifest
from posexport.run.providers import LEVELS, make_session
from posexport.run.wrapped_session import refusal


def answers(bundle: Path, provider: str, **options: Any) -> dict[str, Any]:
    """The verdict, the largest error, its tolerance, the first wrong node; ``options``: of `posexport.verify`."""
    began = time.perf_counter()
    report = posexport.verify(bundle, provider=provider, **options)
    compared = [point for point in report.points if point.tolerance is not None]
    failed = [point for point in compared if point.verdict == "fail"]
    refused = [point for point in report.points if point.tolerance is None]
    worst = max(compared, key=lambda point: point.error if np.isfinite(point.error) else np.inf, default=None)
    # a call that failed has a message instead of an error
    words = [point.note for point in failed if "ONNX Runtime failed" in point.note]
    words += [] if report.failure_location is None else [report.failure_location]
    words += [f"{point.where}: {point.note}" for point in refused if point.verdict == "fail"]
    words += [f"{item.name}: {item.error} of {item.tolerance}" for item in report.invariants if item.verdict == "fail"]
    words += [item.describe() for item in report.medians if item.verdict == "fail"]
    result = {
        "right": (not failed and all(point.verdict != "fail" for point in refused)) and (report.passed or not options),
        "strays": report.wrong_provider,
        "points": len({point.where for point in report.points}),
        "refused": sum(point.verdict == "rejected" for point in refused),
        "error": None if worst is None else worst.error,
        "tolerance": None if worst is None else worst.tolerance,
        "why": words[0] if words else "",
        "seconds": round(time.perf_counter() - began, 1),
    }
    if options:
        result |= {"lengths": report.lengths, "median": max((item.ratio for item in report.medians), default=None)}
    return result


def beside_cpu(bundle: Path, provider: str) -> float:
    """The largest difference from the CPU provider without optimisations, over the sample.

    The sample of a quantized graph is computed by the CPU provider's kernels, which round activations; without
    optimisations, and on WebGPU, activations are not rounded.
    """
    header, tensors = read(bundle / SAMPLE)
    reference = make_session(bundle / MODEL, level="disable")
    session = make_session(bundle / MODEL, provider=provider)
    worst = 0.0
    for number, point in enumerate(header.points):
        if point.calls:
            continue
        feeds = {s.name: tensors[f"{number}.in.{s.name}"].astype(s.dtype) for s in header.inputs}
        for y, right in zip(session.run(None, feeds), reference.run(None, feeds), strict=True):
            worst = max(worst, float(np.abs(y - right).max() / np.abs(right).max()))
    return worst


def guard(bundle: Path, provider: str) -> dict[str, list[str]]:
    """By optimisation level, the cases beyond the table that are not refused."""
    manifest = posexport.load(bundle).manifest
    limit = manifest.limits.max_length or 0
    tokens = [spec.name for spec in manifest.inputs if spec.role == "positions" and spec.size is not None]
    result: dict[str, list[str]] = {}
    for level in LEVELS:
        session = make_session(bundle / MODEL, provider=provider, level=level)
        long = draw(GridPoint(batch=1, length=limit + 1), manifest.inputs)
        cases = {"length": long}
        for name in tokens:
            feeds = draw(GridPoint(batch=2, length=5, position_ids_given=True), manifest.inputs)
            feeds[name][1, 3] = limit
            cases[name] = feeds
        result[level] = [name for name, feeds in cases.items() if not _refuses(session, feeds)]
    return result


def _refuses(session: onnxruntime.InferenceSession, feeds: dict[str, Any]) -> bool:
    try:
        session.run(None, feeds)
    except Exception as err:  # noqa: BLE001  # of any class: `refusal` recognizes the guard's
        return refusal(err) is not None
    return False


def main() -> None:
    """Print the result as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("provider")
    parser.add_argument("bundle")
    parser.add_argument("--guard", action="store_true")
    parser.add_argument("--precision")
    parser.add_argument("--against")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--length", type=int, action="append", default=[])
    arguments = parser.parse_args()
    provider, bundle = arguments.provider, arguments.bundle
    options: dict[str, Any] = {}
    if arguments.precision is not None:
        longest = read_manifest(Path(bundle)).limits.max_length
        lengths = sorted({min(length, longest or length) for length in arguments.length})
        options = {
            "provider_options": {"precision": arguments.precision},
            "against": arguments.against,
            "settings": arguments.set,
            "lengths": lengths,
        }
    try:
        result = answers(Path(bundle), provider, **options)
        if result["right"] is False and PRECISIONS[posexport.load(bundle).manifest.precision].quantized:
            result["beside_cpu"] = beside_cpu(Path(bundle), provider)
        if arguments.guard:
            result["guard"] = guard(Path(bundle), provider)
    except PosexportError as err:
        result = {"right": None, "why": str(err)}
    print(json.dumps({"onnxruntime": onnxruntime.__version__, **result}))


if __name__ == "__main__":
    main()
