"""What a conversion of a deployed shape takes: processor time, wall time, peak memory and the size of its file.

One conversion at a time, each in a process of its own; ci/results/shapes.json has a row for each, replaced when it is
measured again.
"""

import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ci.lab.deployed.make import SHAPES
from posexport.inspect.bench.run import commit, machine

ROOT = Path(__file__).parents[3]
RECORD = ROOT / "ci" / "results" / "shapes.json"
#: what says which row it is
KEY = ("shape", "layers", "precision", "exporter", "proof")
#: other exporters, and their environments of ci/lab/rivals/setup
RIVALS = {"onnxruntime-genai": "genai", "optimum-onnx": "optimum"}
#: seconds after which a conversion is given up
_LIMIT = 4 * 3600


def measure(
    name: str, checkpoint: Path, exporters: list[str], layers: int | None = None, *, proofs: bool, again: bool
) -> None:
    """Measure every conversion of a shape that has no row yet; ``proofs``: also those that are proven.

    ``layers``: how many the checkpoint has; None: as many as are deployed.
    """
    for exporter, precision, proof in conversions(name):
        if exporter not in exporters or (proof and not proofs):
            continue
        key = (name, layers, precision, exporter, proof)
        if not again and any(tuple(row.get(part) for part in KEY) == key for row in rows()):
            continue
        row = {**dict(zip(KEY, key, strict=True)), **measured(exporter, precision, proof, name, checkpoint)}
        print(json.dumps(row), flush=True)
        record(row)


def conversions(name: str) -> list[tuple[str, str, bool]]:
    """Exporter, precision, and whether the result is proven."""
    shape = SHAPES[name]
    found = [("posexport", precision, proof) for precision in shape["precisions"] for proof in (False, True)]
    found += [("onnxruntime-genai", precision, False) for precision in shape.get("genai", [])]
    return [*found, ("optimum-onnx", "fp32", False)] if "optimum" in shape else found


def measured(exporter: str, precision: str, proof: bool, name: str, checkpoint: Path) -> dict[str, Any]:
    """A conversion's costs, and its last line where it failed."""
    with tempfile.TemporaryDirectory(dir=checkpoint.parent) as folder:
        output = Path(folder) / "out"
        command = commands(checkpoint, output, precision, SHAPES[name].get("optimum", ""))[exporter]
        if exporter == "posexport" and not proof:
            command.append("--no-verify")
        row = ended(command, Path(folder))
        # ONNX files, and the files of their weights
        graphs = [path for path in output.rglob("*") if ".onnx" in path.name]
        row["bytes"] = sum(path.stat().st_size for path in graphs)
    row["weights"] = sum(path.stat().st_size for path in checkpoint.glob("*.safetensors"))
    where = machine()
    row |= {"cpu": where.cpu, "cores": where.cores, "load": round(where.load, 1), "commit": commit()}
    return row | {"date": datetime.datetime.now(tz=datetime.UTC).date().isoformat()}


def commands(checkpoint: Path, output: Path, precision: str, task: str) -> dict[str, list[str]]:
    """What each exporter's users write."""
    posexport = [sys.executable, "-m", "posexport", "convert", str(checkpoint), "-o", str(output), "--quiet"]
    genai, optimum = (ROOT / ".cache" / "rivals" / name / "bin" for name in RIVALS.values())
    builder = ["-m", "onnxruntime_genai.models.builder", "-i", str(checkpoint), "-o", str(output), "-e", "cpu"]
    cli = [str(optimum / "optimum-cli"), "export", "onnx", "--model", str(checkpoint), "--task", task]
    return {
        "posexport": [*posexport, "--target", "cpu", "--precision", precision],
        "onnxruntime-genai": [str(genai / "python"), *builder, "-p", precision, "-c", str(output.parent / "cache")],
        "optimum-onnx": [str(optimum / "python"), *cli, str(output)],
    }


def ended(command: list[str], folder: Path) -> dict[str, Any]:
    """Run a command to its end: what it and the processes that it waited for took."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
    with (folder / "said").open("w+") as said:
        began = time.monotonic()
        process = subprocess.Popen(
            ["timeout", str(_LIMIT), *command], cwd=folder, env=environment, stdout=said, stderr=said
        )
        _, status, usage = os.wait4(process.pid, 0)
        seconds, process.returncode = time.monotonic() - began, os.waitstatus_to_exitcode(status)
        said.seek(0)
        lines = [line.strip() for line in said.read().splitlines() if line.strip()]
    costs: dict[str, Any] = {"cpu_seconds": round(usage.ru_utime + usage.ru_stime, 1), "seconds": round(seconds, 1)}
    costs["peak"] = usage.ru_maxrss * 1024
    if process.returncode:
        costs["failed"] = (lines or [f"exit code {process.returncode}"])[-1][:300]
    return costs


def rows() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(RECORD.read_text()) if RECORD.exists() else []
    return found


def record(row: dict[str, Any]) -> None:
    """Put a row in its place, in the order of shapes.yaml."""
    kept = [old for old in rows() if any(old.get(part) != row[part] for part in KEY)]
    kept = sorted([*kept, row], key=_place)
    RECORD.write_text("[\n" + ",\n".join(json.dumps(each) for each in kept) + "\n]\n")


def _place(row: dict[str, Any]) -> tuple[Any, ...]:
    return list(SHAPES).index(row["shape"]), row.get("layers") or 0, row["precision"], row["exporter"]
