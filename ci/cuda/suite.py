"""The CUDA suite: every built-in model and golden checkpoint, converted as users do and proven on CUDA.

Options stand behind a model's name: ``NAME --cache static``, ``NAME --target cuda``. A run is about one precision, and
has a file of its own.
"""

import argparse
import datetime
import importlib.metadata
import json
import multiprocessing
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

#: Seconds after which no further model is begun; what was left out is written down.
BUDGET = 460
GOLDEN = Path("tests/golden")
#: also converted so: every decoder with a static KV cache, every built-in text model with ONNX Runtime's own operators
STATIC, OWN_OPERATORS = " --cache static", " --target cuda"


def main() -> int:
    """Exit code 0: all proven; 1: something missed; 2: no CUDA."""
    parser = argparse.ArgumentParser(prog="ci/gpu", description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--provider", default="cuda", help="cpu runs the same suite without a GPU, and writes nothing")
    parser.add_argument("--precision", default="fp32", help="of all models; default: fp32")
    parser.add_argument("--only", nargs="*", help="these models, not all")
    args = parser.parse_args()

    from posexport.errors import PosexportError
    from posexport.runtime.providers import quiet

    quiet()  # what ONNX Runtime logs when CUDA does not load is in the sentence below
    try:
        rows = list(suite(args.provider, args.precision, args.only))
    except PosexportError as err:
        print(f"ci/gpu: {err}", file=sys.stderr)
        return 2
    for row in rows:
        worst = row.get("worst_error") or 0.0
        print(f"{row['verdict']:8} {row['model']:48} {worst:9.1e} {row['seconds']:6.1f} s  {row['note']}")
    if args.provider == "cuda":
        device = gpu()
        record = {
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "device": device,
            "versions": versions(),
            "commit": commit(),
            "precision": args.precision,
        }
        args.directory.mkdir(parents=True, exist_ok=True)
        name = re.sub(r"[^a-z0-9]+", "-", device["name"].lower()).strip("-")
        kind = "" if args.precision == "fp32" else f"-{args.precision}"
        path = args.directory / f"cuda-{name}{kind}.json"
        path.write_text(json.dumps({**record, "models": rows}, indent=1) + "\n")
        print(f"wrote {path}")
    return 0 if all(row["verdict"] == "proven" for row in rows) else 1


def suite(provider: str, precision: str, only: list[str] | None) -> Any:
    """A row per model."""
    from posexport.runtime.providers import check_loads
    from posexport.sources import builtin

    check_loads(provider)
    text = [name for name in builtin.models() if name.startswith(("encoder-", "decoder-"))]
    decoders = [name for name in text if name.startswith(("decoder-", "encoder-decoder-"))]
    names = [*builtin.models(), *(str(path) for path in sorted(GOLDEN.iterdir()) if (path / "config.json").is_file())]
    names += [f"{name}{STATIC}" for name in decoders] + [f"{name}{OWN_OPERATORS}" for name in text]
    workers = max(1, (os.cpu_count() or 1) // 2)  # most of the time is tracing and float64, on the host
    ends = time.monotonic() + BUDGET
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        rows = [(name, pool.submit(one, name, provider, precision, ends)) for name in only or names]
        for name, row in rows:
            yield {"model": name, **row.result()}


def one(name: str, provider: str, precision: str, ends: float) -> dict[str, Any]:
    """Convert one model and prove it on the provider, if that begins before the monotonic clock says ``ends``."""
    if time.monotonic() > ends:
        return {"verdict": "left out", "note": f"the suite's {BUDGET} s were over", "seconds": 0.0}
    from posexport.conversion.convert import convert
    from posexport.conversion.options import ConvertOptions
    from posexport.sources import builtin

    started = time.perf_counter()
    name, *options = name.split(" --")
    chosen = dict(option.split(" ") for option in options)
    # what a second layer shares with the first has branches of its own
    layered = not Path(name).is_dir() and "layers" in builtin.models()[name][0].config.settings()
    wanted = ConvertOptions(
        settings=("layers=2",) if layered else (),
        cache="static" if chosen.get("cache") == "static" else "dynamic",
        target="cuda" if chosen.get("target") == "cuda" else "portable",
        precision=precision,
        provider=provider,
    )
    with tempfile.TemporaryDirectory() as folder:
        report = convert(name, Path(folder) / "bundle", wanted).report
    assert report is not None
    summary = report.summary()
    return {
        "verdict": "MISSED" if not report.passed else "proven except" if report.unreached else "proven",
        "points": summary.points,
        "passed": summary.passed,
        "refused": summary.rejected,
        "skipped": summary.skipped,
        "worst_error": summary.worst_error,
        "worst_tolerance": summary.worst_tolerance,
        "invariants": {f"{i.name} at {i.length}": i.verdict for i in report.invariants},
        "strays": report.wrong_provider,
        "unreached": [f"{branch.branch}: {branch.note}" for branch in report.unreached],
        "seconds": round(time.perf_counter() - started, 1),
        "note": "" if report.passed else report.describe(),
    }


def gpu() -> dict[str, str]:
    """Name and driver, from the driver's own tool."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    name, driver = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[0].split(", ")
    return {"name": name, "driver": driver}


def versions() -> dict[str, str]:
    """What took part."""
    packages = ("torch", "onnx", "onnxscript", "onnxruntime-gpu", "numpy")
    return {"python": platform.python_version(), **{name: importlib.metadata.version(name) for name in packages}}


def commit() -> str:
    """The commit of the checkout, or why it is not known."""
    done = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "not a git checkout"


if __name__ == "__main__":
    sys.exit(main())
