"""How many right models the proof refuses: false alarms of the criterion, on this processor.

Every built-in model and one golden checkpoint of every family, each round with other weights, on 1 and 2 threads in
turn, converted with the defaults but for a shorter list of lengths. Golden checkpoints get other weights by permuting
the elements of each tensor, which keeps their distribution. All of them are right: the tests compare the same
definitions and graphs with transformers and with the papers. A refusal is a false alarm, or a bug that no test found.
"""

import argparse
import datetime
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from safetensors.numpy import load_file, save_file

from posexport.catalogue.stored import catalogue
from posexport.conversion.convert import convert
from posexport.conversion.options import ConvertOptions
from posexport.errors import PosexportError
from posexport.inspect.bench.run import commit, machine
from posexport.proof.criterion import EPS, FACTOR, FLOOR
from posexport.proof.report.record import LEAST_POINTS, LIMIT
from posexport.proof.report.report import Report
from posexport.sources.load import load_source
from posexport.sources.load_options import LoadOptions
from posexport.sources.source import Source

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden"
#: both sides of the size of a block, and enough points for a median of each
LENGTHS = (1, 2, 17, 64, 129, 257)
#: boundaries of encodings beyond this are left out
LONGEST = 300
THREADS = (1, 2)
#: at most one of so many right models may be refused
PER_REFUSAL = 200
#: tensors that a formula fills: they are no weights
FORMULAS = ("inv_freq", "embed_positions")
#: the rule before this one, for comparison: times PyTorch's baseline error, and eps
FORMER = (2, 16)


@dataclass(frozen=True)
class Model:
    """A built-in name or a golden checkpoint's, with the seed of its weights and the number of threads."""

    name: str
    seed: int
    threads: int

    @property
    def key(self) -> str:
        return f"{self.name} seed {self.seed} threads {self.threads}"


def models(count: int) -> list[Model]:
    """``count`` models; a round has every built-in model and every family once, in an order drawn with a seed."""
    names = [row["name"] for row in catalogue("models")]
    families: dict[str, list[str]] = {}
    for path in sorted(GOLDEN.iterdir()):
        if path.is_dir():
            families.setdefault(path.name.split("-")[0], []).append(path.name)
    found: list[Model] = []
    for seed in range(1, count + 1):
        rng = random.Random(seed)
        names_of_round = [*names, *(rng.choice(family) for family in families.values())]
        rng.shuffle(names_of_round)
        found += [Model(name, seed, THREADS[(at + seed) % 2]) for at, name in enumerate(names_of_round)]
        if len(found) >= count:
            break
    return found[:count]


def lengths_of(source: Source) -> list[int] | None:
    """`LENGTHS`, both sides of the encoding's boundaries, and the limit; None (the defaults) for images and samples."""
    limits = source.limits
    if limits.proof_image_sizes or limits.proof_lengths or limits.convolutions:
        return None
    near = {b + step for b in limits.boundaries if b <= LONGEST for step in (0, 1)}
    limit = limits.max_length
    found = {*LENGTHS, *near, *([limit] if limit is not None and limit <= LONGEST else [])}
    return sorted(n for n in found if n >= limits.min_length and (limit is None or n <= limit))


def permuted(checkpoint: Path, directory: Path, seed: int) -> None:
    """A copy of a checkpoint, the elements of each weight in another order."""
    rng = np.random.default_rng(seed)
    for path in checkpoint.iterdir():
        if path.name == "expected.safetensors":
            continue
        if path.suffix != ".safetensors":
            shutil.copy(path, directory / path.name)
            continue
        tensors = load_file(path)
        for name, tensor in tensors.items():
            if tensor.dtype.kind == "f" and not any(part in name for part in FORMULAS):
                tensors[name] = rng.permutation(tensor.reshape(-1)).reshape(tensor.shape)
        save_file(tensors, directory / path.name, {"format": "pt"})


def measured(model: Model) -> dict[str, Any]:
    """The proof of one model: its verdict, and how near it came to every limit."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="posexport-rates-") as folder:
        argument, settings = model.name, (f"seed={model.seed}", "layers=2")
        if (GOLDEN / model.name).is_dir():
            argument, settings = str(Path(folder) / "checkpoint"), ()
            Path(argument).mkdir()
            permuted(GOLDEN / model.name, Path(argument), model.seed)
        elif model.name.startswith("vision-swin"):
            settings = settings[:1]
        options = LoadOptions(settings=settings)
        lengths = lengths_of(load_source(argument, options))
        done = convert(
            argument, Path(folder) / "bundle", ConvertOptions(settings=settings, lengths=lengths, threads=model.threads)
        )
    assert done.report is not None
    return {"lengths": lengths, **summary(done.report), "seconds": round(time.perf_counter() - start, 1)}


def summary(report: Report) -> dict[str, Any]:
    """What of a report is kept: ratios to the limits, the largest of each kind."""
    points = [point for point in report.points if point.tolerance is not None]
    invariants = [item for item in report.invariants if item.tolerance is not None and "order of" not in item.name]
    return {
        "refused": not report.passed,
        "reason": "" if report.passed else report.describe(),
        "points": len(points),
        "largest_point_ratio": max((point.ratio for point in points), default=0.0),
        "largest_invariant_ratio": max(((item.error or 0) / (item.tolerance or 1) for item in invariants), default=0.0),
        "medians": {f"{item.output} over {item.where}": round(item.ratio, 3) for item in report.medians},
        "refused_by_former_rule": _former(report),
    }


def _former(report: Report) -> bool:
    """Whether the rule before this one would have refused it, where this one has no other objection."""
    times, eps = FORMER
    limits: dict[tuple[int, str], float] = {}
    for point in report.points:
        if point.worst_baseline_error is not None:
            limits[point.length, point.output] = max(times * point.worst_baseline_error, eps * EPS[point.precision])
    exceeded = [p for p in report.points if p.error is not None and p.error > limits[p.length, p.output]]
    for item in report.invariants:
        limit = limits.get((item.length, item.output))
        if limit is not None and item.error is not None and "order of" not in item.name and item.error > limit:
            return True
    return bool(exceeded)


def rows(count: int, log: Path) -> Iterator[dict[str, Any]]:
    """One row a model; those that ``log`` has are not converted again."""
    known: dict[str, dict[str, Any]] = {}
    if log.exists():
        known = {row["model"]: row for row in map(json.loads, log.read_text().splitlines())}
    for model in models(count):
        row = known.get(model.key)
        if row is None:
            row = {"model": model.key, "name": model.name, "commit": commit()}
            try:
                row |= measured(model)
            except PosexportError as err:
                # the model cannot be had with these weights: it says nothing about the criterion
                row |= {"refused": False, "unusable": str(err)}
            with log.open("a") as file:
                file.write(json.dumps(row) + "\n")
        yield row


def record(found: list[dict[str, Any]]) -> dict[str, Any]:
    """What stands in ci/results/rates.json."""
    usable = [row for row in found if "unusable" not in row]
    medians = [ratio for row in usable for ratio in row["medians"].values()]
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "processor": machine().cpu,
        "cores": machine().cores,
        "commits": sorted({row["commit"] or "" for row in found}),
        "versions": {each.__name__: each.__version__ for each in (torch, onnx, onnxruntime, np)},
        "criterion": {
            "times_pytorch": FACTOR,
            "eps": FLOOR["fp32"],
            "median": LIMIT,
            "points_of_a_median": LEAST_POINTS,
        },
        "lengths": list(LENGTHS),
        "other_lengths": f"boundaries of the encoding up to {LONGEST} and one more; the limit",
        "threads": list(THREADS),
        "models": len(usable),
        "refused": [{key: row[key] for key in ("model", "reason")} for row in usable if row["refused"]],
        "refused_by_former_rule": sorted(row["model"] for row in usable if row["refused_by_former_rule"]),
        "unusable": [{key: row[key] for key in ("model", "unusable")} for row in found if "unusable" in row],
        "points": sum(row["points"] for row in usable),
        "largest_point_ratio": max(row["largest_point_ratio"] for row in usable),
        "largest_invariant_ratio": max(row["largest_invariant_ratio"] for row in usable),
        "medians": {
            "groups": len(medians),
            "largest": max(medians, default=None),
            "99_percent_below": round(float(np.quantile(medians, 0.99)), 3) if medians else None,
        },
    }


def main() -> int:
    """Exit code 1 if more than one right model in `PER_REFUSAL` is refused."""
    parser = argparse.ArgumentParser(prog="ci/lab/rates/run", description=__doc__)
    parser.add_argument("--count", type=int, default=PER_REFUSAL)
    parser.add_argument("--log", type=Path, default=ROOT / ".cache" / "rates.jsonl", help="rows that are done")
    parser.add_argument("--out", type=Path, default=ROOT / "ci" / "results" / "rates.json")
    args = parser.parse_args()
    args.log.parent.mkdir(parents=True, exist_ok=True)
    found = []
    for row in rows(args.count, args.log):
        found.append(row)
        text = row.get("unusable") or row["reason"]
        verdict = "unusable" if "unusable" in row else "REFUSED" if row["refused"] else "accepted"
        print(f"{len(found):4} {verdict:9} {row['model']} {text}", flush=True)
    result = record(found)
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{len(result['refused'])} of {result['models']} right models refused")
    return 1 if len(result["refused"]) * PER_REFUSAL > result["models"] else 0


if __name__ == "__main__":
    sys.exit(main())
